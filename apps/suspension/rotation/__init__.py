"""Rotation: claims that do not fit together share GPUs by time. The decisions are `rotation.planning`'s."""
