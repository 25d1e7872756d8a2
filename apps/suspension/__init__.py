"""Suspension of claims: their GPUs are free for others while their programs' GPU memory is in the node's memory."""
