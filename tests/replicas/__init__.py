"""A platform of several web servers, schedulers and workers behind a balancer, over a replicated PostgreSQL."""
