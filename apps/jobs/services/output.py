"""Reading the output of jobs."""

from collections.abc import Iterator
from typing import NamedTuple

from apps.jobs.models import Job, JobOutput

# One answer is a page's or a terminal's next portion, not a download.
MOST_BYTES = 128 * 1024


class Part(NamedTuple):
    """A part of a run's output."""

    run: int
    offset: int
    next_offset: int
    text: str
    complete: bool
    dropped_bytes: int


def read_output(job: Job, *, run: int | None = None, offset: int = 0, most: int = MOST_BYTES) -> Part:
    """Return up to `most` bytes from `offset` of a run, the last one unless given; whole characters only."""
    number = run or job.runs
    pieces = JobOutput.objects.filter(job=job, run=number).order_by("offset")
    last = pieces.filter(offset__lte=offset).last()
    data = b""
    for piece in pieces.filter(offset__gte=last.offset if last else offset).iterator(chunk_size=4):
        data += bytes(piece.data)[max(0, offset - piece.offset) :] if piece.offset <= offset else bytes(piece.data)
        if len(data) >= most:
            break
    over = number < job.runs or not job.is_open
    data = data[:most]
    is_end = over and offset + len(data) >= _length(job, number)
    if not is_end:
        data = data[: _whole_characters(data)]
    return Part(
        run=number,
        offset=offset,
        next_offset=offset + len(data),
        text=data.decode(errors="replace"),
        complete=is_end,
        dropped_bytes=job.dropped_bytes if number == job.runs else 0,
    )


def stream_output(job: Job) -> Iterator[bytes]:
    """Yield the whole output of the last run, a piece at a time."""
    for piece in JobOutput.objects.filter(job=job, run=job.runs).order_by("offset").iterator(chunk_size=4):
        yield bytes(piece.data)


def _length(job: Job, run: int) -> int:
    last = JobOutput.objects.filter(job=job, run=run).order_by("offset").last()
    return 0 if last is None else last.offset + len(last.data)


def _whole_characters(data: bytes) -> int:
    """Return the length without the first bytes of a character whose rest is still to come."""
    for back in range(1, min(4, len(data)) + 1):
        byte = data[-back]
        if byte < 0x80:
            return len(data)
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(data) - back if needed > back else len(data)
    return len(data)
