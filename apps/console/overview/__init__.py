"""The overview: what needs attention, the fleet map, free capacity, first steps."""
