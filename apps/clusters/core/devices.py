"""Names of our DeviceClasses in Dynamic Resource Allocation: DNS subdomains, without a slash."""

import re

DEVICE_CLASS = "vgpu.gpucloud.io"
# Kubernetes makes an extended resource of each DeviceClass.
CLASS_RESOURCES = "deviceclass.resource.kubernetes.io/"
EXTENDED_RESOURCE = f"{CLASS_RESOURCES}{DEVICE_CLASS}"
# The DeviceClass of a MIG profile: `mig-2g.35gb.gpucloud.io`. Its name says what a ResourceClaim is charged.
MIG_BEGINS, MIG_ENDS = "mig-", ".gpucloud.io"
_PROFILE = re.compile(r"\d{1,2}g\.\d{1,5}gb")


def class_of_profile(profile: str) -> str:
    """Return the name of the DeviceClass of a MIG profile."""
    return f"{MIG_BEGINS}{profile}{MIG_ENDS}"


def profile_of_class(name: str) -> str | None:
    """Return the MIG profile of one of our DeviceClasses; None of any other."""
    profile = name.removeprefix(MIG_BEGINS).removesuffix(MIG_ENDS)
    return profile if _PROFILE.fullmatch(profile) and name == class_of_profile(profile) else None


def is_ours(name: str) -> bool:
    """Return True for a DeviceClass that gpucloud charges."""
    return name == DEVICE_CLASS or profile_of_class(name) is not None
