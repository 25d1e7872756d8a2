"""The REST API of clusters."""
