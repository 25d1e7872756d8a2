"""Tests of Dynamic Resource Allocation."""
