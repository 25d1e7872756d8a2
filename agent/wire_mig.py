"""MIG in the frames of both sides: the profiles of a GPU in MIG mode, and the places of its instances.

A GPU in MIG mode is divided into *GPU instances*. A profile is a kind of them, named as the driver names it
(`2g.35gb`). An instance occupies `size` memory slices of the GPU from `start` on; the profile says where it may start.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

MAX_PROFILES = MAX_INSTANCES = 32
# NVIDIA's GPUs have 8 memory slices, or 4.
MAX_SLICES = 16

ProfileName = Annotated[str, Meta(pattern=r"^[0-9]{1,2}g\.[0-9]{1,5}gb(\+[a-z.]{1,16})?$")]
_Start = Annotated[int, Meta(ge=0, lt=MAX_SLICES)]
_Slices = Annotated[int, Meta(ge=1, le=MAX_SLICES)]
_Bytes = Annotated[int, Meta(ge=1, le=2**44)]


class MigPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a GPU."""

    profile: ProfileName
    start: _Start
    size: _Slices


class SharedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance in which several claims of one tenant run, with limits and turns as on a whole GPU."""

    # The assignment that has the instance; that of its own claim names itself.
    holder: Annotated[str, Meta(pattern=r"^[0-9a-f-]{36}$")]
    # The core of the instance: limits of assignments are in percent of the GPU.
    core_percent: Annotated[int, Meta(ge=1, le=100)]


class MigProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of instances that the GPU can be divided into."""

    name: ProfileName
    # Of the 7 (or 4) compute slices of the GPU.
    compute_slices: _Slices
    # Of all instances of the kind, as NVML says before one is made.
    memory_bytes: _Bytes
    size: _Slices
    starts: Annotated[list[_Start], Meta(min_length=1, max_length=MAX_SLICES)]


class Mig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A GPU in MIG mode. The agent never changes the mode."""

    # Empty if the agent may not make instances: nothing is placed on the GPU.
    profiles: Annotated[list[MigProfile], Meta(max_length=MAX_PROFILES)]
    # Instances that this agent did not make, and leaves alone.
    foreign: Annotated[list[MigPlace], Meta(max_length=MAX_INSTANCES)] = []
