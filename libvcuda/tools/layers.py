"""Check of libvcuda's layers: refuse an include or a call from a lower layer to a higher one.

Usage: layers.py TABLE SOURCES OBJECTS. TABLE is a header with lines `LAYER name path...`, lowest layer first. A path is
a file without its ending, or a folder with a slash, below SOURCES; a layer may have several lines. Includes are read
from the sources, calls from `nm`. Lower layers may use what TABLE declares: callbacks that a higher layer fills.
"""

import re
import subprocess
import sys
from pathlib import Path

LAYER = re.compile(r"^ \* LAYER (\w+) +((?:[\w/]+ )*[\w/]+?)(?:  .*)?$", re.MULTILINE)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
DECLARED = re.compile(r"\} (\w+);")


class Layers:
    """The layers of one table: each file's number and name."""

    def __init__(self, table: Path, sources: Path) -> None:
        self.table, self.sources = table, sources
        self.places: dict[str, list[str]] = {}
        for name, paths in LAYER.findall(table.read_text()):
            self.places.setdefault(name, []).extend(paths.split())
        self.names = list(self.places)
        self.callbacks = frozenset(DECLARED.findall(table.read_text()))

    def number(self, stem: str) -> int | None:
        """Return the layer of a file below the sources (`memory/account`), or None if the table has none."""
        for number, paths in enumerate(self.places.values()):
            if any(stem.startswith(path) if path.endswith("/") else stem == path for path in paths):
                return number
        return None

    def complaint(self, source: str, target: str, what: str) -> str | None:
        """Return a complaint if the target's layer is above the source's."""
        low, high = self.number(source), self.number(target)
        if low is None or high is None or high <= low:
            return None
        return f"{source} (layer {self.names[low]}) {what} of {target} (layer {self.names[high]}), which is higher"


def stems(folder: Path, ending: str) -> dict[str, Path]:
    """Return the files below a folder by their path without the ending."""
    return {str(path.relative_to(folder))[: -len(ending)]: path for path in sorted(folder.rglob(f"*{ending}"))}


def include_complaints(layers: Layers) -> list[str]:
    """Return a complaint for each include of a higher layer's header, and for each file in no layer."""
    headers, files = stems(layers.sources, ".h"), stems(layers.sources, ".c")
    by_name = {path.name: stem for stem, path in headers.items()}
    found: list[str | None] = []
    for stem, path in [*files.items(), *headers.items()]:
        if path == layers.table:
            continue
        if layers.number(stem) is None:
            found.append(f"{path} is in no layer of {layers.table}")
        for name in INCLUDE.findall(path.read_text()):
            target = by_name.get(name)
            if target and headers[target] != layers.table:
                found.append(layers.complaint(stem, target, f'includes "{name}"'))
    return [each for each in found if each]


def call_complaints(layers: Layers, objects: Path) -> list[str]:
    """Return a complaint for each symbol that an object takes from an object of a higher layer."""
    defined: dict[str, str] = {}
    taken: list[tuple[str, str]] = []
    for stem, path in stems(objects, ".o").items():
        if layers.number(stem) is None:
            continue
        for line in subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout.splitlines():
            kind, name = line.split()[-2:]
            if kind == "U":
                taken.append((stem, name))
            elif kind.isupper():
                defined[name] = stem
    complaints = (
        layers.complaint(stem, defined[name], f"uses {name}")
        for stem, name in taken
        if name in defined and name not in layers.callbacks
    )
    return [each for each in complaints if each]


def main() -> int:
    """Print all complaints; return 1 if there are any."""
    table, sources, objects = (Path(argument) for argument in sys.argv[1:4])
    layers = Layers(table, sources)
    complaints = include_complaints(layers) + call_complaints(layers, objects)
    for complaint in complaints:
        sys.stderr.write(f"layers: {complaint}\n")
    return 1 if complaints or not layers.places else 0


if __name__ == "__main__":
    sys.exit(main())
