"""REST views of this app."""
