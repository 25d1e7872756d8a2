"""What exists and what it is doing: nodes, GPUs, the agents' gateway, utilisation."""
