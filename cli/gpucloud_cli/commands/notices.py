"""`notice show|set|test`: what the person of the token is told by e-mail."""

from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.failures import Usage
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation

PATH = "me/notices/"
FIELDS = body_fields("PATCH me/notices/", "notice")


@click.group()
def notice() -> None:
    """Notices: what you are told by e-mail, and when. Needs a personal token."""


@notice.command()
@output_options
@pass_invocation
def show(invocation: Invocation) -> None:
    """Show what you are told by e-mail.

    Example: gpucloud notice show
    """
    with invocation.api() as api:
        invocation.show(api.get(PATH).body)


@notice.command("set")
@field_options(FIELDS, required=False)
@output_options
@pass_invocation
def set_(invocation: Invocation, /, **given: Any) -> None:
    """Set what you are told by e-mail; options that are not given stay as they are.

    Example: gpucloud notice set --preempted now --started digest --quiet-hours "daily 22:00-07:00"
    """
    wanted = body(FIELDS, given)
    if not wanted:
        raise Usage("Nothing to change was given: see --help.")
    with invocation.api() as api:
        invocation.show(api.patch(PATH, wanted).body)


@notice.command()
@output_options
@pass_invocation
def test(invocation: Invocation) -> None:
    """Send yourself a test mail.

    Example: gpucloud notice test
    """
    with invocation.api() as api:
        invocation.show(api.post(f"{PATH}test/", {}).body)
    output.say("the mail is sent within seconds")


COMMANDS = {"": (notice,)}
