"""Words of a container's programs: the lines of `gpuload`, and the environment."""

from typing import Any

from tests.kubelet.chain import Chain

GIB = 1 << 30
Json = dict[str, Any]


def events(chain: Chain, pod: str, kind: str) -> list[Json]:
    """Return the lines about this kind of event."""
    return [line for line in chain.lines(pod) if line.get("event") == kind]


def shares(chain: Chain, pod: str, *, least: int = 1) -> list[Json]:
    """Return the lines about intervals of kernels, as soon as there are so many."""
    found = [line for line in chain.lines(pod) if "share_percent" in line]
    return found if len(found) >= least else []


def environment(chain: Chain, pod: str) -> dict[str, str]:
    """Return the environment of the container's first process."""
    text = chain.execute(pod, "cat", "/proc/1/environ")
    return dict(one.split("=", 1) for one in text.split("\0") if "=" in one)
