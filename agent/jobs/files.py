"""The files of a run's directory, by which the agent and the run's keeper talk. Standard library only."""

import json
import os
from pathlib import Path
from typing import Any

# The agent writes `FILES`, the archive, if there is one, and the order before it starts the keeper, `ADMITTED` to let
# the program execute, and `STOP` to end it; the keeper writes all others.
ORDER, ADMITTED, STOP, FILES = "order.json", "admitted.json", "stop", "files"
# `IMAGE`: what a container runs, and `VARIABLES`: its environment, for its engine.
IMAGE, VARIABLES = "image.json", "variables"
# A socket in it is a terminal that the agent waits for.
TERMINALS = "terminals"
LOCK, PROGRAM, OUTPUT, DROPPED, RESULT = "lock", "program.json", "output", "dropped.json", "result.json"


def read(name: str) -> Any:
    """Return the content of a file; None if there is none."""
    try:
        return json.loads(Path(name).read_bytes())
    except FileNotFoundError:
        return None


def write(name: str, content: object) -> None:
    """Replace the file: a reader gets the old content or the new. Raises OSError."""
    fresh = f".{name}.new"
    with Path(fresh).open("w") as file:
        json.dump(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(fresh, name)  # noqa: PTH105 - names of one directory
