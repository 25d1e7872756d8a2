"""The reference of all commands, as Markdown made from the commands.

python -m gpucloud_cli.reference docs/cli-reference.md        writes it
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import click

from gpucloud_cli.failures import MEANINGS
from gpucloud_cli.main import build

HEAD = """\
# Commands of `gpucloud`

After reading this page you know every command, its options, and the exit codes. [cli.md](cli.md) explains their use.
`python -m gpucloud_cli.reference docs/cli-reference.md` writes this page; do not edit it.

## Exit codes

| | |
| --- | --- |
"""


def render() -> str:
    """Return the exit codes, then every command with its options."""
    codes = [f"| {code.value} | {meaning} |" for code, meaning in MEANINGS.items()]
    lines = [*codes, "", "## Commands", "", "Every command accepts `--url`, `--token-file` and `--help`.", ""]
    return HEAD + "\n".join([*lines, *_lines(build(), "gpucloud")]).rstrip() + "\n"


def _lines(command: click.Command, name: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for inner, found in sorted(command.commands.items()):
            yield from _lines(found, f"{name} {inner}")
        return
    context = click.Context(command, info_name=name)
    arguments = [one.make_metavar(context) for one in command.params if isinstance(one, click.Argument)]
    yield f"### `{' '.join([name, *arguments])}`"
    yield ""
    sentence, _, example = (command.help or "").partition("Example: ")
    yield " ".join(sentence.split())
    if example:
        yield ""
        yield f"    {example.strip()}"
    yield ""
    options = [one for one in command.params if isinstance(one, click.Option) and one.name not in {"url", "token_file"}]
    for option in options:
        record = option.get_help_record(context)
        if record is not None:
            yield f"- `{record[0]}`{' — ' if record[1] else ''}{' '.join(record[1].split())}"
    if options:
        yield ""


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(render(), encoding="utf-8")
