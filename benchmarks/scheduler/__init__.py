"""`make bench-scheduler`: placements a second that are durable, and how soon a posted claim is assigned."""
