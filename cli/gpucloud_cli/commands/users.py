"""`user invite|reset-password`, and `member create` for people without an account."""

from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.failures import Problem, Usage
from gpucloud_cli.fields import ROLES, body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

USER, MEMBER = BY_NAME["user"], BY_NAME["member"]
INVITED = body_fields("POST invitations/", "invitation", without=("username", "operator"))


@click.command()
@click.argument("username", default="")
@field_options(INVITED)
@click.option("--operator", is_flag=True, help="invite an operator of the platform")
@output_options
@pass_invocation
def invite(invocation: Invocation, /, username: str, operator: bool, **given: Any) -> None:
    """Invite a person: print a link that works once.

    Example: gpucloud user invite ada --tenant vision --role member
    """
    _invite(invocation, {"username": username, "operator": operator, **body(INVITED, given)})


def _invite(invocation: Invocation, wanted: dict[str, Any]) -> None:
    with invocation.api() as api:
        made = api.post("invitations/", wanted).body
    if invocation.structured:
        invocation.show(made)
        return
    output.say(f"send this link; it works once, until {made['expires_at']}:")
    click.echo(made["link"])


@click.command("reset-password")
@click.argument("username")
@output_options
@pass_invocation
def reset_password(invocation: Invocation, username: str) -> None:
    """Print a link with which a user sets a new password, once.

    Example: gpucloud user reset-password ada
    """
    with invocation.api() as api:
        made = api.post(f"{path_of(USER, None, username)}password-reset/", {}).body
    if invocation.structured:
        invocation.show(made)
    else:
        output.say(f"send this link; it works once, until {made['expires_at']}:")
        click.echo(made["link"])


@click.command("create")
@click.argument("username")
@click.option("--tenant", required=True, envvar="GPUCLOUD_TENANT", help="a tenant's slug")
@click.option("--role", type=ROLES, required=True, help="the role in the tenant")
@click.option("--invite", "invites", is_flag=True, help="invite the person if there is no such user")
@output_options
@pass_invocation
def create_member(invocation: Invocation, username: str, tenant: str, role: str, invites: bool) -> None:
    """Create a member, or change their role.

    Example: gpucloud member create ada --tenant vision --role member
    """
    wanted = {"username": username, "role": role}
    try:
        with invocation.api() as api:
            invocation.show(api.post(path_of(MEMBER, tenant), wanted).body)
    except Problem as problem:
        if problem.status != 400 or "username" not in (problem.facts.get("errors") or {}):
            raise
        if not invites:
            hint = f"gpucloud user invite {username} --tenant {tenant} --role {role}"
            raise Usage(f"There is no active user {username}. Invite them: {hint}") from problem
        _invite(invocation, wanted | {"tenant": tenant})


COMMANDS = {"user": (invite, reset_password), "member": (create_member,)}
