"""A pool as the core takes it: its GPUs and nodes, and the room that reservations withhold."""
