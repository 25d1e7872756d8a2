"""Putting the agent onto a machine, replacing it by another, taking it away.

Only the standard library is imported here: this runs out of the bundle, before anything is unpacked.
"""
