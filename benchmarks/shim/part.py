"""The type of a part."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.shim.report import Report
from benchmarks.shim.stage import Stage


@dataclass(frozen=True)
class Part:
    """One module's measurement. ``seconds`` is the default duration of each of its single measurements."""

    name: str
    about: str
    measure: Callable[[Stage, Report], None]
    seconds: float
    torch: bool = False
    gpus: int = 1
