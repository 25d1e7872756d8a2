"""Name of our DeviceClass in Dynamic Resource Allocation. A DeviceClass' name is a DNS subdomain, without a slash."""

DEVICE_CLASS = "vgpu.gpucloud.io"
# Kubernetes makes an extended resource of each DeviceClass.
EXTENDED_RESOURCE = f"deviceclass.resource.kubernetes.io/{DEVICE_CLASS}"
