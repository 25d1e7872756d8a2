"""Pages of reservations: the pool's week, booking, changes."""
