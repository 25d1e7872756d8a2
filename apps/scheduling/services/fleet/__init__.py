"""A pool as the core needs it: its GPUs and nodes, and what reservations keep of them."""
