"""Who holds what now: claims, assignments, rounds."""
