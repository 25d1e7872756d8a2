"""``python -m benchmarks.replicas.filling NODES DIRECTORY``: fill the database and write down what is in it."""

import sys
from dataclasses import asdict
from pathlib import Path

import django
import msgspec


def main() -> None:
    nodes, directory = int(sys.argv[1]), Path(sys.argv[2])
    django.setup()
    from benchmarks.telemetry import filling  # noqa: PLC0415 - models, once apps are loaded

    filled = filling.fill(nodes)
    (directory / "filled.json").write_bytes(msgspec.json.encode(asdict(filled)))
    (directory / "operator.token").write_text(filled.token)


if __name__ == "__main__":
    main()
