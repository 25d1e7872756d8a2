"""Names of our devices in Dynamic Resource Allocation. A DeviceClass' name is a DNS subdomain, without a slash."""

DRIVER = "gpucloud.io"
DEVICE_CLASS = "vgpu.gpucloud.io"
