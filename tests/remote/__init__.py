"""Tests of remote shares at the server."""
