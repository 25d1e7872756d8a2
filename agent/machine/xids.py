"""What becomes of a GPU after an XID error, the NVIDIA driver's report of something wrong.

By the immediate actions in NVIDIA's catalogue (docs.nvidia.com/deploy/xid-errors: "Analyzing Xid Errors with the Xid
Catalog"; the page of older GPUs for those up to 63): where restarting the program is enough, the GPU is well; where the
GPU or the machine is to be reset, it takes no new claims until that was done. Of a number that is not in here nothing
is known: the GPU takes no new claims until none has come for a while.
"""

from enum import Enum


class Cure(Enum):
    """What ends the trouble."""

    # The program's own fault, or its end: the GPU goes on. Told as an event, no condition.
    PROGRAM = "program"
    # Nothing more for a while.
    TIME = "time"
    # A reset of the GPU or of the machine, or an operator who knows better.
    RESET = "reset"


_PROGRAM = {
    8: "a program's channel was idle for too long",
    11: "a program sent a broken push buffer",
    13: "a program's fault in the graphics or compute engine (such as an access out of bounds)",
    31: "a program used memory that is not mapped",
    32: "a program sent a broken push buffer",
    37: "the driver reported an error of a program",
    43: "a program's channel stopped after its own fault",
    45: "a program's work was cleaned up before its end",
    63: "a bad memory row or page was noted for replacement; whether a reset is due is another condition",
    68: "a fault in the video engine",
    69: "a program's fault in the graphics engine's class",
    94: "an uncorrectable memory error was contained: only the programs that met it ended",
}
_RESET = {
    46: "the GPU stopped answering in time",
    48: "a double bit error in memory",
    62: "the GPU's internal micro-controller halted",
    64: "a bad memory row or page could not be noted for replacement",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncorrectable memory error was not contained: any program may have met it",
    109: "a context switch took too long",
    110: "a security fault",
    119: "the GPU's system processor did not answer in time",
    120: "an error of the GPU's system processor",
    136: "an error in linking the GPU's NVLinks",
    140: "an uncorrectable memory error that the driver could not deal with",
    143: "the GPU could not be initialised",
    155: "an NVLink was taken down by software",
    156: "a memory resource was taken out of use",
    158: "a fatal timeout of the GPU",
}


def cure(number: int) -> Cure:
    """What ends the trouble that this XID tells of."""
    if number in _PROGRAM:
        return Cure.PROGRAM
    return Cure.RESET if number in _RESET else Cure.TIME


def words(number: int) -> str:
    """What it tells of, as a sentence's end."""
    return _PROGRAM.get(number) or _RESET.get(number) or "see NVIDIA's catalogue of XID errors"
