"""How gpucloud is brought up: the bootstrap, the embedded services, the demo, the static checks."""
