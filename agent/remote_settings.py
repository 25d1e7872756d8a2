"""The operator's settings for remote shares."""

from collections.abc import Mapping
from typing import NamedTuple

from agent import job_users
from agent.job_users import JobUsers


class RemoteSettings(NamedTuple):
    """The port at which clients reach this node, and the component that serves them."""

    # HOST:PORT; with port 0, any free one.
    address: str
    users: JobUsers
    # The path of the component's server; None: it is looked for on the PATH.
    server: str | None
    search_path: str | None


def parse(environment: Mapping[str, str]) -> RemoteSettings | None:
    """Parse GPUCLOUD_REMOTE and what belongs to it; None if the node has no remote shares. Raises ValueError."""
    address = environment.get("GPUCLOUD_REMOTE")
    if not address or address == "off":
        return None
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or not int(port) < 65536:
        raise ValueError(f"GPUCLOUD_REMOTE={address} is not HOST:PORT; with port 0, any free one.")
    users = job_users.parse(environment.get("GPUCLOUD_REMOTE_USERS"), name="GPUCLOUD_REMOTE_USERS")
    if users is None:
        raise ValueError("GPUCLOUD_REMOTE needs GPUCLOUD_REMOTE_USERS: as whom do remoting servers run?")
    return RemoteSettings(address, users, environment.get("GPUCLOUD_REMOTE_SERVER"), environment.get("PATH"))
