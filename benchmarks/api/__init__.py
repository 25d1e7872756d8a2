"""`make bench-api`: what the REST API bears on one machine, and how its lists fare with a long history."""
