"""Pages of a pool's queue and of its scheduling rounds."""
