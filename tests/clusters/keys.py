"""JSON with its keys in another case, as a client in another language might write it."""

from collections.abc import Callable
from typing import Any

# Whose keys are names that somebody gave: of resources, annotations, nodes.
MAPS = {"limits", "capacity", "annotations", "nodenametovictims", "nodenametometavictims"}


def folded(value: Any, change: Callable[[str], str], *, within: str = "") -> Any:
    """The same with every key changed that is a field's name."""
    if isinstance(value, list):
        return [folded(item, change, within=within) for item in value]
    if not isinstance(value, dict):
        return value
    keep = within.lower() in MAPS
    return {key if keep else change(key): folded(item, change, within=key) for key, item in value.items()}


def mixed(key: str) -> str:
    """Every other letter large."""
    return "".join(letter.upper() if place % 2 else letter.lower() for place, letter in enumerate(key))
