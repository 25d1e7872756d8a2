"""Pages of jobs: the list, one job with its output, a new one, its end."""
