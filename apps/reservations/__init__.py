"""Reservations: booking, their charges over time, their begin and end by the clock, and the calendar."""
