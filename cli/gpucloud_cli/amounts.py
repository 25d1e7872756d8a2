"""Types of options: sizes, durations and amounts as people write them."""

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click

UNITS_MIB = {"": 1.0, "mib": 1.0, "mi": 1.0, "gib": 1024.0, "gi": 1024.0, "g": 1024.0, "tib": 1024.0**2}
UNITS_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([a-z]*)")
PART = re.compile(r"(\d{1,9})([smhd]?)")
PARTS = re.compile(r"\d{1,9}|(\d{1,9}[smhd])+")


class Null:
    """A null that was given as a word (`none`, `unlimited`); an option that was not given is None."""

    def __repr__(self) -> str:
        return "none"


NULL: Final = Null()


class Mebibytes(int):
    """A size that was given with its unit, valid for memory only."""


class Seconds(int):
    """A duration that was given with its unit, valid for times only."""


def mib(text: str) -> int:
    """Parse `8GiB`, `8192MiB` or `8192` as MiB.

    Raises ValueError.
    """
    match = NUMBER.fullmatch(text.strip().lower())
    if match is None or match.group(2) not in UNITS_MIB:
        raise ValueError(f"{text!r} is no size: write 8GiB, 8192MiB, or 8192 for MiB")
    size = float(match.group(1)) * UNITS_MIB[match.group(2)]
    if size != int(size):
        raise ValueError(f"{text!r} is no whole number of MiB")
    return Mebibytes(size) if match.group(2) else int(size)


def seconds(text: str) -> int:
    """Parse `90`, `90s`, `10m`, `1h30m` or `2d` as seconds.

    Raises ValueError.
    """
    plain = text.strip().lower()
    if not PARTS.fullmatch(plain):
        raise ValueError(f"{text!r} is no duration: write 90s, 10m, 1h30m or 2d")
    return sum(int(count) * UNITS_SECONDS[unit] for count, unit in PART.findall(plain))


def amount(text: str) -> int:
    """Parse `400`, `64GiB` as MiB, or `2h` as seconds.

    Raises ValueError.
    """
    plain = text.strip().lower()
    return Seconds(seconds(plain)) if PARTS.fullmatch(plain) and not plain.isdecimal() else mib(text)


def duration_text(total: float) -> str:
    """Return seconds as `1h30m`, in the form that `seconds` parses; below a minute as `4.2s`."""
    if total < 60 and total != int(total):
        return f"{total:.1f}s"
    rest, parts = int(total), []
    for unit in ("d", "h", "m", "s"):
        count, rest = divmod(rest, UNITS_SECONDS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def size_text(size_mib: float) -> str:
    """Return MiB as `8 GiB`, `1.5 GiB` or `512 MiB`."""
    return f"{size_mib / 1024:.4g} GiB" if abs(size_mib) >= 1024 else f"{size_mib:g} MiB"


class Words(click.ParamType):
    """A mapping such as `zone=a,net=ib`."""

    name = "words"

    def __init__(self, *, none: bool = False) -> None:
        # True if an empty text means no words; elsewhere an empty text is a variable that was not set.
        self.none = none

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, str]:
        """Convert text to a mapping."""
        if isinstance(value, dict):
            return value
        if self.none and not value:
            return {}
        pairs = [part.strip().partition("=") for part in value.split(",")]
        if not all(name and equals for name, equals, _ in pairs):
            self.fail(f"{value!r} names no labels: write zone=a, or zone=a,net=ib", param, ctx)
        return {name: word for name, _, word in pairs}


class Json(click.ParamType):
    """An object with fields of its own, such as `{"floor": 5}`."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        """Convert JSON to a mapping."""
        try:
            found = json.loads(value) if isinstance(value, str) else value
        except ValueError:
            found = None
        if not isinstance(found, dict):
            self.fail(f"{value!r} is no JSON object", param, ctx)
        return found


class Number(click.ParamType):
    """A number with a unit."""

    def __init__(self, name: str, parse: Callable[[str], int]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Convert text to a number in the API's unit."""
        try:
            return value if isinstance(value, int) else self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Moment(click.ParamType):
    """A time in ISO 8601, or a duration from now (`ago`: before now)."""

    name = "time|duration"

    def __init__(self, *, ago: bool = False) -> None:
        self._sign = -1 if ago else 1

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Convert a duration to a time; the server parses the others."""
        plain = value.strip().lower()
        if not PARTS.fullmatch(plain) or plain.isdecimal():
            return value
        try:
            return (datetime.now(UTC) + self._sign * timedelta(seconds=seconds(plain))).isoformat()
        except OverflowError:
            self.fail(f"{value!r} is too long", param, ctx)


class OrNull(click.ParamType):
    """Another type, or a word for null."""

    def __init__(self, inner: click.ParamType, word: str = "none") -> None:
        self.inner, self.word = inner, word
        self.name = f"{inner.name}|{word}"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Convert the word to NULL, and other text by the other type."""
        return NULL if value in (self.word, "null", NULL) else self.inner.convert(value, param, ctx)


SIZE, DURATION, AMOUNT = Number("size", mib), Number("duration", seconds), Number("amount", amount)
IN, AGO = Moment(), Moment(ago=True)


def misplaced_size(wanted: Mapping[str, object], counted: object) -> str | None:
    """Return why a size or duration is not valid for this resource or field of a claim; None if it is valid."""
    for name, value in wanted.items():
        if isinstance(value, Mebibytes) and counted not in ("memory_mib", "host_memory_mib"):
            return f"{name} is a size, and {counted} is not counted in sizes"
        if isinstance(value, Seconds) and counted != "time_limit_seconds":
            return f"{name} is a duration, and {counted} is not counted in time"
    return None
