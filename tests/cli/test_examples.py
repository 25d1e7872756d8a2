"""Examples in help texts."""

import shlex
from collections.abc import Iterator

import click
import pytest

from gpucloud_cli.main import build


def commands(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            yield from commands(inner, (*path, name))
    else:
        yield path, command


COMMANDS = dict(commands(build()))


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_the_example_of_each_command_can_be_parsed(path: tuple[str, ...]) -> None:
    sentence, _, example = (COMMANDS[path].help or "").partition("Example: ")
    assert sentence.strip().endswith("."), "a sentence comes first"
    words = shlex.split(example.replace("source <(", "").replace(")", ""))
    # `webhook delete` is another name of `webhook remove`.
    assert tuple(words[: len(path) + 1]) in {("gpucloud", *path), ("gpucloud", *path[:-1], "remove")}
    COMMANDS[path].make_context(path[-1], words[len(path) + 1 :])
