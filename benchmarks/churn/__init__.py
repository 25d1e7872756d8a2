"""A production trace played back by its own clock: who waits how long, and what is served."""
