"""How gpucloud is brought up: the bootstrap, the embedded services, the demo, and what production deployments start from."""
