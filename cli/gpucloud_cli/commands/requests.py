"""`quota-request forward|approve|deny|counter|accept|withdraw`."""

from typing import Any

import click

from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

REQUEST = BY_NAME["quota-request"]
COUNTERED = body_fields("POST quota-requests/{}/counter/", "quota-request")


def join(root: click.Group) -> None:
    """Add the commands to the tree."""
    group = root.commands["quota-request"]
    assert isinstance(group, click.Group)
    for command in (forward, approve, deny, counter, accept, withdraw):
        group.add_command(command)


@click.command()
@click.argument("uid")
@output_options
@pass_invocation
def forward(invocation: Invocation, *, uid: str) -> None:
    """Pass a member's quota request on to the operators (the tenant's admins).

    Example: gpucloud quota-request forward 0198c1ab-…
    """
    _act(invocation, uid, "forward", {})


@click.command()
@click.argument("uid")
@click.option("--words", help="a message to the tenant")
@click.option("--dry-run", is_flag=True, help="show the effect; change nothing")
@output_options
@pass_invocation
def approve(invocation: Invocation, *, uid: str, words: str | None, dry_run: bool) -> None:
    """Approve a quota request (operators).

    Example: gpucloud quota-request approve 0198c1ab-… --dry-run
    """
    _act(invocation, uid, "approve", {"words": words}, dry_run=dry_run or None)


@click.command()
@click.argument("uid")
@click.option("--words", required=True, help="the reason")
@output_options
@pass_invocation
def deny(invocation: Invocation, *, uid: str, words: str) -> None:
    """Deny a quota request with a reason (operators; the tenant's admins before they pass it on).

    Example: gpucloud quota-request deny 0198c1ab-… --words "ask again in May"
    """
    _act(invocation, uid, "deny", {"words": words})


@click.command()
@click.argument("uid")
@field_options(COUNTERED)
@output_options
@pass_invocation
def counter(invocation: Invocation, /, uid: str, **given: Any) -> None:
    """Counter a quota request with another amount, which the tenant may accept (operators).

    Example: gpucloud quota-request counter 0198c1ab-… --amount 64GiB
    """
    _act(invocation, uid, "counter", body(COUNTERED, given))


@click.command()
@click.argument("uid")
@click.option("--if-version", type=click.INT, help="fail (exit 3) unless the offer is still at this version")
@output_options
@pass_invocation
def accept(invocation: Invocation, *, uid: str, if_version: int | None) -> None:
    """Accept an operator's counter-offer.

    Example: gpucloud quota-request accept 0198c1ab-…
    """
    path = path_of(REQUEST, None, uid)
    with invocation.api() as api:
        etag = api.get(path).etag if if_version is None else f'"{if_version}"'
        invocation.show(api.post(f"{path}accept/", {}, etag=etag).body)


@click.command()
@click.argument("uid")
@output_options
@pass_invocation
def withdraw(invocation: Invocation, *, uid: str) -> None:
    """Withdraw a quota request.

    Example: gpucloud quota-request withdraw 0198c1ab-…
    """
    _act(invocation, uid, "withdraw", {})


def _act(invocation: Invocation, uid: str, act: str, said: dict[str, Any], **parameters: Any) -> None:
    wanted = {name: value for name, value in said.items() if value is not None}
    with invocation.api() as api:
        invocation.show(api.post(f"{path_of(REQUEST, None, uid)}{act}/", wanted, **parameters).body)
