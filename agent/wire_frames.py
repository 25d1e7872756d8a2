"""The base of all frames of both sides, and the bounds of the values in them."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

VERSION: Final = 1

Uid = Annotated[str, Meta(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
GpuUuid = Annotated[str, Meta(pattern=r"^(GPU|MIG)-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")]
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Bytes = Annotated[int, Meta(ge=0, le=2**63 - 1)]
DeviceBytes = Annotated[int, Meta(ge=0, le=2**44)]  # of one GPU: 16 TiB, some fifty times the largest there is
Percent = Annotated[int, Meta(ge=0, le=100)]
# Measured shares may pass 100 a little: the window's ends do not fall on a kernel's ends.
MeasuredPercent = Annotated[float, Meta(ge=0, le=1000)]
Seconds = Annotated[float, Meta(ge=0, le=1e11)]
Celsius = Annotated[float, Meta(ge=-1000, le=1e5)]
Word = Annotated[str, Meta(max_length=200)]
Sentence = Annotated[str, Meta(max_length=2000)]
CamelCase = Annotated[str, Meta(pattern=r"^[A-Z][A-Za-z0-9]{0,62}$")]  # in Kubernetes: a reason or type


class Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A value inside a frame."""


class Frame(Record, frozen=True, kw_only=True, tag_field="type", tag=str.lower):
    """A message; its ``type`` on the wire is the class's name in lower case."""

    v: Literal[1] = VERSION
