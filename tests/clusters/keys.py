"""JSON with its keys in another case, as a client in another language might write it."""

from collections.abc import Callable
from typing import Any

# Objects whose keys are user-defined names: resources, annotations, nodes.
MAPS = {"limits", "capacity", "annotations", "nodenametovictims", "nodenametometavictims"}


def change_keys(value: Any, change: Callable[[str], str], *, within: str = "") -> Any:
    """Change every key that is a field's name."""
    if isinstance(value, list):
        return [change_keys(item, change, within=within) for item in value]
    if not isinstance(value, dict):
        return value
    keep = within.lower() in MAPS
    return {key if keep else change(key): change_keys(item, change, within=key) for key, item in value.items()}


def mix_case(key: str) -> str:
    """Capitalize every other letter."""
    return "".join(letter.upper() if place % 2 else letter.lower() for place, letter in enumerate(key))
