"""The runs that a node is to have, as its agent is told."""

from collections.abc import Sequence
from uuid import UUID

from agent import wire
from apps.jobs.models import MOST_OUTPUT_BYTES, OPEN, Job, JobKind
from apps.jobs.services import notebooks
from apps.scheduling.models import Assignment

COLUMNS = (
    "run_uid", "claim__uid", "kind", "command", "environment", "time_limit_seconds", "tenant_id", "stop_requested_at",
    "run_started_at", "output_bytes", "array_index", "array__size", "image",
    "files__sha256", "files__size", "git_url", "git_ref",
)  # fmt: skip


def orders(node_ids: Sequence[int]) -> dict[int, list[wire.JobRun]]:
    """Return the runs of each of these nodes: those whose claim has GPUs there, as many as fit into a frame."""
    placed = dict(
        Assignment.objects.live()
        .filter(gpu__node__in=node_ids, claim__job__state__in=OPEN)
        .exclude(state="releasing")
        .values_list("claim__job", "gpu__node_id")
    )
    found: dict[int, list[wire.JobRun]] = {}
    for pk, *values in Job.objects.filter(pk__in=placed).order_by("pk").values_list("pk", *COLUMNS) if placed else ():
        run, claim, kind, command, environment, seconds, owner, stop, started, stored, index, size, image, *source = (
            values
        )
        found.setdefault(placed[pk], []).append(
            wire.JobRun(
                uid=str(run),
                claim_uid=str(claim),
                command=notebooks.program_of(command) if kind == JobKind.NOTEBOOK else command,
                environment=environment | _of_array(index, size) | _of_kind(kind, run),
                files=wire.Files(sha256=source[0], bytes=source[1]) if source[0] else None,
                git=wire.Git(url=source[2], ref=source[3] or "") if source[2] else None,
                seconds=seconds or 0,
                output_bytes=MOST_OUTPUT_BYTES,
                owner=owner,
                stop=stop is not None,
                started=started is not None,
                stored=stored,
                image=image or "",
                notebook=kind == JobKind.NOTEBOOK,
            )
        )
    return {node_id: wire.fit_runs(runs) for node_id, runs in found.items()}


def _of_array(index: int | None, size: int | None) -> dict[str, str]:
    """Return the variables of a job of an array."""
    return {} if index is None else {"GPUCLOUD_ARRAY_INDEX": str(index), "GPUCLOUD_ARRAY_SIZE": str(size)}


def _of_kind(kind: str, run_uid: UUID) -> dict[str, str]:
    """Return the variables of a notebook."""
    return {notebooks.TOKEN: notebooks.token_of(run_uid)} if kind == JobKind.NOTEBOOK else {}
