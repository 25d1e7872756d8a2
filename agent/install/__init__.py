"""Installation of the agent on a machine, its upgrade, its removal.

Only the standard library is imported here: this runs out of the bundle, before anything is unpacked.
"""
