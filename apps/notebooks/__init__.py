"""Notebooks in the browser: each at a host name of its own, authenticated, proxied through a tunnel to its run."""
