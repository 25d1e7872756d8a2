"""Small JSON files that survive `kill -9`: a reader gets the old content or the new, never a part of one."""

import os
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class Damaged(Exception):
    """Unreadable content of an existing file; the message says where and why."""


def write(path: Path, content: object, *, durable: bool = False) -> None:
    """Replace the file by `content` as JSON, readable by its owner only.

    `durable` also waits for the disk, for content that a power cut must not lose (a credential). The server repairs the
    rest after a power cut, and waiting for the disk would cost every resize milliseconds.
    """
    replace(path, msgspec.json.encode(content) + b"\n", mode=0o600, durable=durable)


def replace(path: Path, content: bytes, *, mode: int, durable: bool = False) -> None:
    """Replace the file by these bytes, with this mode whatever the umask."""
    # One name, so that kills leave one such file at most.
    temporary = path.with_name(f".{path.name}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            os.fchmod(file.fileno(), mode)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_directory(path.parent)


def read(path: Path, kind: type[T]) -> T | None:
    """Return the file's content as `kind`; None if there is no file. Raises Damaged."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise Damaged(f"{path}: {error}") from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
