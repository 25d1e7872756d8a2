"""Requests of a pod beside its share: the GPUs that it accepts, its gang, and words that nothing here follows.

The webhook writes a selection of GPUs into two annotations, which the extender reads; tenants may write them, too.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

# Words separated by commas, of which one must match: a part of the model's name, `=NAME` for the whole name; `!` before
# a word excludes what it matches.
MODEL = "gpucloud.io/gpu-model"
# UUIDs; `!` before one excludes it.
UUID = "gpucloud.io/gpu-uuid"
KEYS = (MODEL, UUID)
# Name of a group within the namespace, and how many of its pods are placed together or not at all.
GANG, GANG_MINIMUM = "gpucloud.io/gang", "gpucloud.io/gang-minimum"
# Each pod of a gang is annotated while the first one waits for its answer.
MOST_IN_GANG = 64
EXACT, NOT = "=", "!"
# Longest annotation that is read.
LONGEST = 4096
# HAMi knows a model with its vendor before it.
VENDOR = "NVIDIA"


@dataclass(frozen=True, slots=True)
class Selection:
    """GPUs that a pod accepts, in the words of the annotations; empty: any."""

    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.models or self.uuids)

    def __str__(self) -> str:
        return ", ".join(f"{key}: {value}" for key, value in self.annotations.items())

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of this selection."""
        both = {MODEL: self.models, UUID: self.uuids}
        return {key: ",".join(words) for key, words in both.items() if words}

    def accepts(self, model: str, uuid: str) -> bool:
        """Return True if the pod may have this GPU."""
        name = _plain(model)
        right_model = _passes(self.models, lambda word: _matches(word, name))
        return right_model and _passes(self.uuids, lambda word: word == uuid)


@dataclass(frozen=True, slots=True)
class Gang:
    """A group of pods of one namespace, of which `minimum` are placed together or none."""

    name: str
    minimum: int

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of each of its pods."""
        return {GANG: self.name, GANG_MINIMUM: str(self.minimum)}


@dataclass(frozen=True, slots=True)
class Wishes:
    """Everything that a pod of another format asks beside its share.

    `unmet`: sentences on words that nothing here follows; the pod runs without what they ask. `impossible`: sentences
    on words without which the pod would be wrong; it is not rewritten.
    """

    selection: Selection = Selection()
    gang: Gang | None = None
    unmet: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations that the extender reads."""
        return self.selection.annotations | (self.gang.annotations if self.gang is not None else {})


def selection_of(annotations: Mapping[str, str]) -> Selection:
    """Return the selection of a pod's annotations."""
    return Selection(*(split(annotations.get(key, "")[:LONGEST]) for key in KEYS))


def gang_of(annotations: Mapping[str, str]) -> Gang | None:
    """Return the gang of a pod's annotations; None if there is none, or nothing to wait for."""
    name, minimum = (annotations.get(key, "").strip() for key in (GANG, GANG_MINIMUM))
    return Gang(name, int(minimum)) if name and _is_minimum(minimum) and int(minimum) > 1 else None


def unmet_gang(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the sentence on a gang whose minimum nothing can follow."""
    if not annotations.get(GANG, "").strip() or _is_minimum(annotations.get(GANG_MINIMUM, "").strip()):
        return ()
    return (f"{GANG} is not followed: {GANG_MINIMUM} is a whole number from 1 to {MOST_IN_GANG}.",)


def _is_minimum(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= len(str(MOST_IN_GANG)) and 1 <= int(text) <= MOST_IN_GANG


def split(text: str) -> tuple[str, ...]:
    """Return the words between commas."""
    return tuple(word for each in text.split(",") if (word := each.strip()))


def without(words: Iterable[str]) -> tuple[str, ...]:
    """Return these words as excluding ones."""
    return tuple(f"{NOT}{word}" for word in words)


def _passes(words: tuple[str, ...], matches: Callable[[str], bool]) -> bool:
    wanted = [word for word in words if not word.startswith(NOT)]
    if any(matches(word.removeprefix(NOT).strip()) for word in words if word.startswith(NOT)):
        return False
    return not wanted or any(matches(word) for word in wanted)


def _matches(word: str, name: str) -> bool:
    if word.startswith(EXACT):
        return _plain(word.removeprefix(EXACT)) == name
    return _plain(word) in f"{VENDOR} {name}"


def _plain(name: str) -> str:
    """Return the name as all formats write it: KubeShare and HAMi put dashes for spaces."""
    return " ".join(name.upper().replace("-", " ").split())
