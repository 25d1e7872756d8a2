"""Reservations: booked, charged, begun and ended by the clock, and the calendar that shows them."""
