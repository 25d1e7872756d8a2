"""Packing: two claims share a GPU while both keep most of the rate that they had alone."""
