"""Commands that do more than a verb of a resource."""
