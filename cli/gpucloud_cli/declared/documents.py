"""Parser of the files: reports all mistakes at once, each with its file and line.

It reads YAML nodes, not values: a value does not have its line.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from gpucloud_cli.amounts import misplaced_size
from gpucloud_cli.declared.kinds import API_VERSION, DOCUMENTS, Check, Identity, Kind, identity
from gpucloud_cli.declared.plan import Declared
from gpucloud_cli.failures import Usage
from gpucloud_cli.nouns import WORDING

MOST_MISTAKES = 20
SUFFIXES = (".yaml", ".yml")


def read(places: Iterable[str]) -> Declared:
    """Read files, directories, or `-` for stdin.

    Raises Usage with every mistake in them.
    """
    reader = Reader()
    for place in places:
        for path in _files(place):
            reader.file(path)
    if reader.mistakes:
        shown = reader.mistakes[:MOST_MISTAKES]
        if left := len(reader.mistakes) - len(shown):
            shown.append(f"… and {left} more")
        raise Usage("\n".join(["the files are wrong:", *shown]))
    if not reader.declared.items:
        raise Usage("There is nothing in these files.")
    return reader.declared


def _files(place: str) -> list[Path]:
    path = Path(place)
    if place == "-" or path.is_file():
        return [path]
    if path.is_dir():
        return sorted(inner for inner in path.rglob("*") if inner.suffix in SUFFIXES and inner.is_file())
    raise Usage(f"{place}: there is no such file or directory.")


class Reader:
    """A collector of declared values and mistakes."""

    def __init__(self) -> None:
        self.declared = Declared()
        self.mistakes: list[str] = []
        self._file = ""
        self._seen: dict[Identity, str] = {}

    def file(self, path: Path) -> None:
        """Read every document of one file."""
        self._file = "stdin" if str(path) == "-" else str(path)
        try:
            content = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
            for node in yaml.compose_all(content, Loader=yaml.SafeLoader):
                if node is not None:
                    self._document(node)
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            line = 1 if mark is None else mark.line + 1
            self.mistakes.append(f"{self._file}:{line}: {error.problem or error.context}")
        except (OSError, ValueError, yaml.YAMLError) as error:
            self.mistakes.append(f"{self._file}: {error}")

    def _report(self, node: yaml.Node, words: str) -> None:
        self.mistakes.append(f"{self._location(node)}: {words}")

    def _location(self, node: yaml.Node) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"

    def _document(self, node: yaml.Node) -> None:
        if not isinstance(node, yaml.MappingNode):
            self._report(node, "a document must have fields, like `name: value`")
            return
        entries = self._entries(node, "a document")
        version, kind_node = entries.pop("apiVersion", None), entries.pop("kind", None)
        if version is None or _plain(version) != API_VERSION:
            self._report(version or node, f"apiVersion must be {API_VERSION}")
            return
        kind = None if kind_node is None else DOCUMENTS.get(str(_plain(kind_node)))
        if kind is None:
            self._report(kind_node or node, f"kind must be one of {', '.join(DOCUMENTS)}")
            return
        lists = {one: entries.pop(one.listed or "", None) for one in kind.within}
        values = self._item(kind, node, entries, None, also=tuple(one.listed or "" for one in kind.within))
        for one, listed in lists.items():
            if listed is not None:
                # An invalid owner is named by its position, so that mistakes within it are found too.
                self._list(one, listed, self._location(node) if values is None else str(values["slug"]))

    def _list(self, kind: Kind, node: yaml.Node, owner: str) -> None:
        if not isinstance(node, yaml.SequenceNode):
            self._report(node, f"{kind.listed} must be a list")
            return
        self.declared.whole.add((owner, kind))
        for inner in node.value:
            self._item(kind, inner, self._entries(inner, f"an item of {kind.listed}"), owner)

    def _item(
        self, kind: Kind, node: yaml.Node, entries: dict[str, yaml.Node], owner: str | None, also: tuple[str, ...] = ()
    ) -> dict[str, Any] | None:
        """Return one object's values; None if they are invalid."""
        before = len(self.mistakes)
        values: dict[str, Any] = {}
        for name, inner in entries.items():
            check = kind.fields.get(name)
            if check is None:
                known = ", ".join([*kind.fields, *also])
                self._report(inner, f"{name} is no field of {WORDING[kind.name].noun}; known are: {known}")
            else:
                self._value(values, name, inner, check)
        for name in sorted(kind.required - entries.keys()):
            self._report(node, f"{name} is missing from this {kind.name}")
        if words := misplaced_size(values, values.get("resource", values.get("field"))):
            self._report(node, words)
        if len(self.mistakes) > before:
            return None
        who = identity(kind, values, owner)
        if who in self._seen:
            self._report(node, f"{who} stands already in {self._seen[who]}")
            return None
        self._seen[who] = self._location(node)
        self.declared.items[who] = values
        return values

    def _value(self, values: dict[str, Any], name: str, node: yaml.Node, check: Check) -> None:
        try:
            values[name] = check(_plain(node))
        except ValueError as error:
            self._report(node, f"{name} {error}")

    def _entries(self, node: yaml.Node, what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            self._report(node, f"{what} must have fields, like `name: value`")
            return {}
        entries: dict[str, yaml.Node] = {}
        for key, value in node.value:
            name = str(_plain(key))
            if name in entries:
                self._report(key, f"{name} stands twice")
            entries[name] = value
        return entries


def _plain(node: yaml.Node) -> Any:
    """Return a scalar's value; for a misplaced list or mapping a description of it."""
    if not isinstance(node, yaml.ScalarNode):
        return "a list" if isinstance(node, yaml.SequenceNode) else {}
    return yaml.SafeLoader("").construct_object(node)
