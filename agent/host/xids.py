"""The consequences of an XID error, the NVIDIA driver's report of something wrong, for a GPU.

After the immediate actions of NVIDIA's "Xid Catalog" for Ampere and newer GPUs, numbers 1 to 172, as of October 2025
(docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html): if restarting the program is enough, or nothing is to be
done, the GPU is well; if the GPU or the machine is to be reset, it takes no new claims until that was done. If the
action depends on bits that only the kernel's log has (48, 74, 144 to 150), the graver one is taken. For a number that
is not listed here the catalogue says "contact support", or nothing: the GPU takes no new claims until none has come for
a while.
"""

from enum import Enum


class Cure(Enum):
    """The kind of cure."""

    # The program's own fault, or its end, or nothing to do: the GPU continues. Reported as an event, no condition.
    PROGRAM = "program"
    # Nothing more for a while.
    TIME = "time"
    # A reset of the GPU or of the machine, or an operator who knows better.
    RESET = "reset"


_COPY_ENGINES = (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136))
_VIDEO_ENGINES = (60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139)

_PROGRAM = {
    8: "a program's channel was idle for too long",
    11: "a program sent a broken push buffer",
    13: "a program's fault in the graphics or compute engine (such as an access out of bounds)",
    25: "a program sent a broken push buffer",
    31: "a program used memory that is not mapped",
    32: "a program sent a broken push buffer",
    37: "the driver's firmware was asked for something that it does not know",
    38: "the driver's firmware waited too long",
    43: "a program's channel stopped after its own fault",
    44: "a fault while the graphics engine changed programs",
    45: "a program's work was cleaned up before its end",
    63: "a bad memory row or page was noted for replacement; whether a reset is due is another condition",
    66: "the driver used a register that it may not",
    67: "the driver used a register that it may not",
    69: "a program's fault in the graphics engine's class",
    80: "data on the way to the GPU was corrupted",
    92: "many single-bit memory errors were corrected",
    93: "the GPU's information memory is written more often than it should be",
    94: "an uncorrectable memory error was contained: only the programs that met it ended",
    106: "a test message",
    107: "a test message",
    108: "another GPU's address could not be translated",
    121: "an error of the link between CPU and GPU was corrected",
    137: "a program used memory of another GPU that it may not",
    141: "a fault in CUDA's fast path",
    152: "an error of the deep learning accelerator",
    153: "the deep learning accelerator did not answer in time",
    154: "what the GPU needs after another XID has changed",
    157: "a bad memory resource could not be taken out of use",
    160: "a memory channel was taken out of use",
    161: "a memory channel could not be taken out of use",
    **dict.fromkeys(_COPY_ENGINES, "a fault in a copy engine"),
    **dict.fromkeys(_VIDEO_ENGINES, "a fault in a video, image or optical flow engine"),
}
_NVLINK = "an NVLink error; the kernel's log says how grave it is"
_RESET = {
    46: "the GPU stopped answering in time",
    48: "a double bit error in memory",
    54: "the board has no auxiliary power",
    62: "the GPU's internal micro-controller halted",
    64: "a bad memory row or page could not be noted for replacement",
    74: _NVLINK,
    79: "the GPU has fallen off the bus",
    95: "an uncorrectable memory error was not contained: any program may have met it",
    109: "a context switch took too long",
    110: "a security fault",
    119: "the GPU's system processor did not answer in time",
    120: "an error of the GPU's system processor",
    136: "an NVLink could not be trained",
    140: "an uncorrectable memory error that the driver could not deal with",
    143: "the GPU could not be initialised",
    **dict.fromkeys(range(144, 151), _NVLINK),
    151: "keys of confidential computing could not be changed",
    155: "an NVLink error that software defines",
    156: "a bad memory resource was taken out of use",
    158: "a fatal timeout of the GPU",
}


def cure(number: int) -> Cure:
    """Return the cure of this XID."""
    if number in _PROGRAM:
        return Cure.PROGRAM
    return Cure.RESET if number in _RESET else Cure.TIME


def describe(number: int) -> str:
    """Return the meaning of this XID, as a sentence's end."""
    return _PROGRAM.get(number) or _RESET.get(number) or "see NVIDIA's catalogue of XID errors"
