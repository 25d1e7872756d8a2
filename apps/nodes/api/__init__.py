"""REST routes of this app: nodes, enrolment, GPUs."""
