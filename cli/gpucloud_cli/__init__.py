"""`gpucloud`: the command line of gpucloud.

It talks to the REST API, and to the agent's socket on its own machine.
"""

__version__ = "0.1.0"
