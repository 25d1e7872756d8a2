"""Elastic groups: their size, and what their programs are told of it."""
