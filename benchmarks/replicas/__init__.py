"""`make bench-replicas`: several web servers, schedulers and databases, and what their ends cost users."""
