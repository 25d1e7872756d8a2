"""The one server that this node belongs to: enrolling, the connection, what waits to be sent."""
