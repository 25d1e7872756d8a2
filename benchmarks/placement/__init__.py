"""Placement quality on a production trace: how much of the GPUs each policy gives out before requests no longer fit."""
