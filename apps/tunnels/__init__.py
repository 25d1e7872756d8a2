"""Tunnels: bytes between a client at the server and a run on a node, which dials."""
