"""Rotation: claims that do not fit together share GPUs by time. The decisions are `apps.scheduling.core.rotation`'s."""
