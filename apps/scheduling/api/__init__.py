"""REST views and serializers of this app: claims, queues, reservations, budgets, rounds, reports."""
