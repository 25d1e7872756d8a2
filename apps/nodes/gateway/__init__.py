"""The agents' gateway: one websocket per node, `/ws/agent/`."""
