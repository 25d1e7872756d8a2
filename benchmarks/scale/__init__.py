"""`make bench-scale`: costs of a large installation as it grows, and several web servers on one machine."""
