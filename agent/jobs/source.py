"""The content of a run's working directory before its command begins: an unpacked archive, or a clone.

Everything here runs as the run's user, in the program's own process and its children, after rights were dropped: what a
hostile archive or repository can do, the command could do as well. What is refused is told by `Refused`, in words.
Standard library only.
"""

import codecs
import gzip
import io
import os
import resource
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

# Of zip's names. Python would load it when it is used first, when the user may not be able to read its library.
codecs.lookup("cp437")

# Unpacked, with the headers of its entries. A larger data set is fetched by the command itself.
MOST_BYTES, MOST_ENTRIES = 4 << 30, 100_000
# For the process that unpacks: an archive's own headers may ask for any amount.
MEMORY_BYTES = 1 << 30
MOST_WORDS = 500
# The launch's own library is for programs that use a GPU.
NOT_FOR_GIT = ("LD_PRELOAD",)
CREDENTIALS = '!f() { test "$1" = get && printf \'username=%s\\npassword=%s\\n\' "$GIT_USERNAME" "$GIT_PASSWORD"; }; f'


class Refused(Exception):
    """The content cannot be had; the message says why."""


def prepare(order: dict[str, Any], files: int | None, environment: dict[str, str]) -> None:
    """Fill the working directory. Raises Refused."""
    if files is not None:
        _unpack_in_child(files)
    elif order.get("git"):
        clone(order["git"]["url"], order["git"].get("ref") or "HEAD", environment)


def _unpack_in_child(files: int) -> None:
    """Unpack in a process of its own, whose memory is bounded: the command's is not."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _unpack_and_exit(files, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        words = told.read(MOST_WORDS).decode(errors="replace")
    _, status = os.waitpid(pid, 0)
    if words or status:
        raise Refused(f"its files were not unpacked: {words or 'the process that unpacks them was killed'}")


def _unpack_and_exit(files: int, writing: int) -> NoReturn:
    code = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        unpack(os.fdopen(files, "rb"))
        code = 0
    except MemoryError:
        os.write(writing, b"reading it takes more than 1 GiB of memory")
    except Exception as error:  # noqa: BLE001 - whatever a hostile archive makes the library raise
        os.write(writing, (str(error) or type(error).__name__).encode()[:MOST_WORDS])
    finally:
        os._exit(code)


def unpack(archive: BinaryIO) -> None:
    """Unpack into the present directory. Raises Refused, and what tarfile, zipfile and the disk raise."""
    begin = archive.read(2)
    archive.seek(0)
    if begin == b"PK":
        _unpack_zip(archive)
    else:
        _unpack_tar(archive)


class Bounded(io.RawIOBase):
    """A stream that ends with Refused above a number of bytes: an archive may say anything of its size."""

    def __init__(self, source: Any, most: int) -> None:
        self._source, self._left, self._most = source, most, most

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes."""
        data: bytes = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise Refused(f"they are larger than {self._most >> 20} MiB")
        return data


def _unpack_tar(archive: BinaryIO) -> None:
    stream: Any = Bounded(gzip.GzipFile(fileobj=archive), MOST_BYTES)
    with tarfile.open(fileobj=stream, mode="r|") as found:
        for number, member in enumerate(found):
            if number >= MOST_ENTRIES:
                raise Refused(f"they are more than {MOST_ENTRIES}")
            # A sparse file takes no bytes of the stream for what it has on the disk.
            if member.size > MOST_BYTES:
                raise Refused(f"they are larger than {MOST_BYTES >> 20} MiB")
            if member.name.startswith("/"):
                raise Refused(f"{member.name!r} is an absolute path")
            if hasattr(tarfile, "data_filter"):
                # It refuses `..`, links that leave, devices, and drops owners and set-id bits.
                found.extract(member, filter="data")
            else:
                found.extract(as_data(member))


def as_data(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Return the entry as tarfile's own filter `data` does, which came with Python 3.11.4. Raises Refused."""
    home = os.path.realpath(".")
    places = [member.name]
    if not (member.isreg() or member.isdir() or member.islnk() or member.issym()):
        raise Refused(f"{member.name!r} is a special file")
    if member.islnk():
        places.append(member.linkname)
    elif member.issym():
        # Of links, where they lead from their own directory.
        places.append(os.path.join(os.path.dirname(member.name), member.linkname))  # noqa: PTH118, PTH120
    if member.linkname.startswith("/"):
        raise Refused(f"{member.name!r} leads to an absolute path")
    for place in places:
        # Also through links that were unpacked before.
        if os.path.commonpath([home, os.path.realpath(place)]) != home:
            raise Refused(f"{member.name!r} is, or leads, outside of the working directory")
    member.mode = 0o755 if member.isdir() else member.mode & 0o755 | 0o600
    return member


def _unpack_zip(archive: BinaryIO) -> None:
    with zipfile.ZipFile(archive) as found:
        members = found.infolist()
        if len(members) > MOST_ENTRIES:
            raise Refused(f"they are more than {MOST_ENTRIES}")
        if sum(member.file_size for member in members) > MOST_BYTES:
            raise Refused(f"they are larger than {MOST_BYTES >> 20} MiB")
        for member in members:
            if member.filename.startswith(("/", "\\")) or ".." in member.filename.replace("\\", "/").split("/"):
                raise Refused(f"{member.filename!r} would be outside of the working directory")
            # Reads no more than the size that was added up; links come out as files with their target's name.
            found.extract(member)


def clone(url: str, ref: str, environment: dict[str, str]) -> None:
    """Clone one commit into the present directory; git's words go to the output. Raises Refused.

    Credentials come from the job's variables GIT_USERNAME and GIT_PASSWORD: never from the URL, and never to a file.
    """
    git = shutil.which("git", path=environment.get("PATH"))
    if git is None:
        raise Refused("there is no git on this node: an operator installs it, or the job brings files")
    quiet = {name: value for name, value in environment.items() if name not in NOT_FOR_GIT}
    quiet |= {"GIT_TERMINAL_PROMPT": "0"}
    helper = ["-c", "credential.helper=", "-c", f"credential.helper={CREDENTIALS}"] if "GIT_PASSWORD" in quiet else []
    for words in (
        ["init", "--quiet", "."],
        ["remote", "add", "origin", url],
        ["fetch", "--depth", "1", "--no-tags", "origin", ref],
        ["-c", "advice.detachedHead=false", "checkout", "--quiet", "FETCH_HEAD"],
    ):
        done = subprocess.run([git, *helper, *words], env=quiet, check=False, stdin=subprocess.DEVNULL)
        if done.returncode:
            what = f" at {ref}" if ref != "HEAD" else ""
            raise Refused(f"git could not clone {url}{what}: its output says why")


def open_files(path: Path) -> int | None:
    """Open the archive, which belongs to the agent, before its rights are dropped; None if there is none."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return None
