"""The agent as a kubelet's driver for Dynamic Resource Allocation. Off unless set.

It has no account in the cluster: the control plane publishes the devices, follows the ResourceClaims, and sends each
of them with the desired state. Here they become CDI devices of containers.
"""
