"""The commands that are more than a verb of a resource."""
