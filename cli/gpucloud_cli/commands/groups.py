"""`group exec`."""

import click

from gpucloud_cli.child import Signals
from gpucloud_cli.group_run import LOOK_SECONDS, GroupPrograms
from gpucloud_cli.options import Invocation, connection_options, pass_invocation


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("name", metavar="GROUP")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@connection_options
@pass_invocation
def execute(invocation: Invocation, /, name: str, command: tuple[str, ...]) -> None:
    """Run COMMAND under each member of a group on this node, as they join, until the group ends.

    For the further nodes of a group that `gpucloud run --group-most` started on another one.

    Example: gpucloud group exec train -- torchrun --nnodes 1:8 train.py
    """
    with Signals() as signals, invocation.api() as api:
        uid = api.get(f"groups/{name}/").body["uid"]
        # `--` after the group is common; click removes it only before the first argument.
        programs = GroupPrograms(api, uid, command[1:] if command[0] == "--" else command)
        try:
            while not programs.ended and not signals.caught:
                programs.refresh()
                signals.wait(LOOK_SECONDS)
        finally:
            programs.end()
        if signals.caught:
            raise click.exceptions.Exit(128 + signals.caught[0])


COMMANDS = {"group": (execute,)}
