"""Scheduling: claims, assignments, reservations and the rounds that place them."""
