"""Deployment of gpucloud: the bootstrap, the embedded services, the demo, the static checks."""
