"""The enrolment at the server, by a one-time token or by a token of the machine's cluster."""

import asyncio
import http
import os
from pathlib import Path

import msgspec

from agent.backoff import Backoff
from agent.logs import log
from agent.server import identity, rest
from agent.server.identity import Identity
from agent.settings import Cluster
from agent.wire import Uid, Word


class EnrolmentFailed(Exception):
    """Failure to become a node; the message says why and what to do."""


class Answer(msgspec.Struct, frozen=True):
    """The server's answer about the new node; fields that it may add are ignored."""

    node_uid: Uid
    node_name: Word


async def enrol(
    *, server: str, state_dir: Path, token: str | None, cluster: Cluster | None = None, backoff: Backoff
) -> Identity:
    """Return the enrolled identity: from the disk, or by asking the server until it answers. Raises EnrolmentFailed.

    A one-time token counts before the cluster's token.
    """
    me = identity.load(state_dir)
    if me is not None and me.node_uid is not None:
        return me
    if not token and cluster is None:
        raise EnrolmentFailed(
            f"{state_dir} holds no node's identity. Make a node in the control plane (POST /api/v1/nodes/) "
            "and start the agent with its one-time token in GPUCLOUD_ENROL_TOKEN."
        )
    if me is None:
        me = identity.create(state_dir)
    answer = None
    while answer is None:
        try:
            path, body = (
                ("nodes/enrol", {"token": token}) if token else ("clusters/join", _cluster_credentials(cluster))
            )
            answer = await asyncio.to_thread(_ask, f"{server}/api/v1/{path}/", {**body, "key_digest": me.key_digest})
        except (rest.Refused, rest.Unreachable) as error:
            # A chart's agents start before anybody has connected their cluster; a one-time token gets no better.
            if isinstance(error, rest.Refused) and (token or error.status != http.HTTPStatus.FORBIDDEN):
                raise EnrolmentFailed(f"The server refused the enrolment: {error}") from error
            pause = backoff.next()
            log.warning("enrolment-postponed", reason=str(error), retry_seconds=round(pause, 2))
            await asyncio.sleep(pause)
    backoff.reset()
    enrolled = msgspec.structs.replace(me, node_uid=answer.node_uid, node_name=answer.node_name)
    identity.save(state_dir, enrolled)
    log.info("enrolled", node=answer.node_name, node_uid=answer.node_uid)
    return enrolled


def take_token() -> str | None:
    """Return the one-time token, removed from the environment so that no child of ours sees it."""
    return os.environ.pop("GPUCLOUD_ENROL_TOKEN", None)


def _cluster_credentials(cluster: Cluster | None) -> dict[str, str | None]:
    """Return the cluster's name and the pod's token, read anew each time. Raises EnrolmentFailed."""
    assert cluster is not None
    try:
        return {"cluster": cluster.name, "token": cluster.token_file.read_text().strip()}
    except OSError as error:
        raise EnrolmentFailed(
            f"GPUCLOUD_CLUSTER={cluster.name}, and {cluster.token_file} cannot be read ({error.strerror}): project a "
            "service account's token into the pod, for the audience gpucloud."
        ) from error


def _ask(url: str, body: dict[str, str | None]) -> Answer:
    answer = rest.request(url, body=body)
    try:
        return msgspec.convert(answer, Answer)
    except msgspec.ValidationError as error:
        raise rest.Unreachable(f"The server's answer to the enrolment is not one: {error}") from error
