"""The agent as a kubelet's device plugin: it offers the GPUs, and gives each container its claim. Off unless set.

The only part of the agent that needs gRPC, which is imported only if it is switched on.
"""
