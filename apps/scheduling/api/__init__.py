"""REST routes of this app: claims, assignments, rounds, utilisation."""
