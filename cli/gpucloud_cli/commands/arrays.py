"""`array stop|wait`."""

import time
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.addressing import find_array
from gpucloud_cli.api import Api
from gpucloud_cli.failures import Exit, Unreachable
from gpucloud_cli.options import Invocation, connection_options, output_options, pass_invocation

LOOK_SECONDS = 2.0
ARRAY_ARGUMENT = click.argument("name", metavar="ARRAY")


@click.command()
@ARRAY_ARGUMENT
@output_options
@pass_invocation
def stop(invocation: Invocation, /, name: str) -> None:
    """Stop all jobs of an array; may be repeated.

    Example: gpucloud array stop train.py
    """
    with invocation.api() as api:
        invocation.show(api.post(f"job-arrays/{find_array(api, name)['uid']}/stop/", {}).body)


@click.command()
@ARRAY_ARGUMENT
@connection_options
@pass_invocation
def wait(invocation: Invocation, /, name: str) -> None:
    """Wait for all jobs of an array; the exit code is 0 only if all have succeeded.

    Example: gpucloud array wait train.py
    """
    with invocation.api() as api:
        raise click.exceptions.Exit(await_all(api, find_array(api, name)["uid"]))


def await_all(api: Api, uid: str) -> int:
    """Say on stderr how far the jobs are until all have ended; return the exit code."""
    said = lost = ""
    while True:
        try:
            array = api.get(f"job-arrays/{uid}/").body
        except Unreachable as error:
            # The jobs go on without the server.
            if str(error) != lost:
                output.say(str(error))
            lost = str(error)
        else:
            lost = ""
            words = _describe(array)
            if words != said:
                output.say(words)
            said = words
            if array["state"] != "running":
                return Exit.DONE if array["state"] == "succeeded" else Exit.FAILED
        time.sleep(LOOK_SECONDS)


def _describe(array: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} {state}" for state, count in array["jobs"].items())
    return f"array {array['name']}: of {array['size']} jobs {counts}"


COMMANDS = {"array": (stop, wait)}
