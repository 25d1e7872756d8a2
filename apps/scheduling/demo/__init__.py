"""The seeded platform of `make demo`: what is in it, and making it so, however often it is asked."""
