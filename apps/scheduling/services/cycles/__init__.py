"""Scheduling cycles: the cached pool, the queue's order, rounds, their commits, records and replays."""
