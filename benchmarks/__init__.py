"""What is measured, each with `make bench-NAME`: a table for people and, last, one line of JSON with the same rows."""
