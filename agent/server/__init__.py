"""The node's one server: enrolment, the connection, frames that wait to be sent."""
