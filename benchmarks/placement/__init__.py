"""Placement quality on a production trace: how much of the GPUs each policy allocates until requests no longer fit."""
