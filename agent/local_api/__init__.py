"""The local API: requests on the agent's unix socket, and what they report."""
