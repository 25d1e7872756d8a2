"""The local API: requests on the agent's unix socket, and their answers."""
