"""Benchmarks, each run by `make bench-NAME`: tables for people and, last, one line of JSON with the same rows."""
