"""A directory as an archive for a job, and its upload."""

import base64
import gzip
import hashlib
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import IO, Any, NamedTuple

from gpucloud_cli import output
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Failure, Problem, Usage

# As a node unpacks at most.
MOST_BYTES, MOST_ENTRIES = 4 << 30, 100_000
# As the API takes at a time.
PIECE_BYTES = 512 << 10
MIB = 1 << 20
LARGEST = 3


class Found(NamedTuple):
    """A file of the directory: its path in there, and its size."""

    name: str
    size: int


def find_files(root: Path, excluded: Iterable[str]) -> list[Found]:
    """Return the files to pack, by name: of a checkout those that git does not ignore. Raises Usage."""
    if not root.is_dir():
        raise Usage(f"--dir {root} is no directory.")
    patterns = list(excluded)
    found = []
    for name in sorted(set(_list(root))):
        if _is_excluded(name, patterns):
            continue
        try:
            found.append(Found(name, (root / name).lstat().st_size))
        except FileNotFoundError:
            continue  # git knows a file that was deleted
    if not found:
        raise Usage(f"--dir {root} has no files to send.")
    _refuse_too_many(found)
    return found


def _list(root: Path) -> Iterator[str]:
    words = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(words, cwd=root, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        yield from _walk(root)
        return
    yield from (os.fsdecode(name) for name in listed.stdout.split(b"\0") if name)


def _walk(root: Path) -> Iterator[str]:
    for place, directories, names in os.walk(root):
        directories[:] = [name for name in directories if name != ".git"]
        # Links to directories are kept as links.
        links = [name for name in directories if (Path(place) / name).is_symlink()]
        yield from (os.path.relpath(os.path.join(place, name), root) for name in (*names, *links))  # noqa: PTH118


def _is_excluded(name: str, patterns: list[str]) -> bool:
    """Return whether a pattern fits the path, or one of its directories or its name."""
    parts = Path(name).parts
    return any(
        fnmatch(name, pattern) or any(fnmatch(part, pattern.rstrip("/")) for part in parts) for pattern in patterns
    )


def _refuse_too_many(found: list[Found]) -> None:
    size = sum(one.size for one in found)
    if len(found) > MOST_ENTRIES or size > MOST_BYTES:
        raise Usage(f"{len(found)} files with {size / MIB:,.0f} MiB are too many. {_advise(found)}")


def _advise(found: list[Found]) -> str:
    largest = sorted(found, key=lambda one: -one.size)[:LARGEST]
    names = ", ".join(f"{one.name} ({one.size / MIB:,.1f} MiB)" for one in largest)
    return f"Leave some out by --exclude; the largest: {names}."


def pack(root: Path, found: list[Found], file: IO[bytes]) -> None:
    """Write the archive; the same files give the same bytes, so that they are uploaded once."""
    with (
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for one in found:
            archive.add(root / one.name, arcname=one.name, recursive=False, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    """Return the entry without what differs between machines; None for devices and sockets."""
    if not (member.isfile() or member.issym() or member.isdir() or member.islnk()):
        return None
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mtime = int(member.mtime)
    return member


def send_directory(api: Api, tenant: str, root: Path, excluded: Iterable[str]) -> str:
    """Pack the directory, upload what the server does not have; return the uid of the files."""
    found = find_files(root, excluded)
    with tempfile.TemporaryFile() as file:
        pack(root, found, file)
        size = file.tell()
        file.seek(0)
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        try:
            files = api.post("job-files/", {"tenant": tenant, "sha256": digest, "size": size}).body
        except Problem as problem:
            if problem.status == 422:
                raise Failure(f"{problem} {_advise(found)}") from problem
            raise
        known = ", which the server has" if files["complete"] else ""
        output.say(f"{len(found)} files of {root}, {size / MIB:,.1f} MiB packed{known}")
        return _upload(api, files, file)


def _upload(api: Api, files: dict[str, Any], file: IO[bytes]) -> str:
    """Send what is missing; return the uid. Raises Failure."""
    while not files["complete"]:
        at = files["stored_bytes"]
        file.seek(at)
        piece = {"offset": at, "content": base64.b64encode(file.read(PIECE_BYTES)).decode()}
        files = api.post(f"job-files/{files['uid']}/pieces/", piece).body
        if files["reason"]:
            raise Failure(f"The files were not taken: {files['reason']}")
    return str(files["uid"])
