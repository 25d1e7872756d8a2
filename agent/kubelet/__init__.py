"""The agent as a kubelet's device plugin: it offers the GPUs, and gives each container its claim. Off unless set.

The only part of the agent that needs gRPC, which is imported where it is switched on.
"""
