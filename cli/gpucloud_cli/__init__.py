"""`gpucloud`: the command line of gpucloud. Talks to the REST API, and to the agent's socket of its own machine."""

__version__ = "0.1.0"
