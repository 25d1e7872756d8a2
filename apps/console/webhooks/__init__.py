"""Pages of webhooks: endpoints, deliveries."""
