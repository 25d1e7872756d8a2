"""Dynamic Resource Allocation: GPUs as devices in ResourceSlices, ResourceClaims as claims of the ledger.

The control plane publishes the slices and follows the ResourceClaims (`manage.py clusters`), a webhook charges them at
creation, and kube-scheduler decides where they are. The node's agent prepares them for the kubelet (`agent/kubelet/`).
"""
