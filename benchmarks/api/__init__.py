"""`make bench-api`: throughput of the REST API on one machine, and its lists with a long history."""
