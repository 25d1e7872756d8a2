"""`quota-request approve|deny|counter|accept|withdraw`."""

from typing import Any

import click

from gpucloud_cli.doors import Asked, answers, asked
from gpucloud_cli.resources import BY_NAME, Amount
from gpucloud_cli.verbs import path_of

REQUEST = BY_NAME["quota-request"]


def join(root: click.Group) -> None:
    """Take part in the command tree."""
    group = root.commands["quota-request"]
    assert isinstance(group, click.Group)
    for command in (approve, deny, counter, accept, withdraw):
        group.add_command(command)


@click.command()
@click.argument("uid")
@click.option("--words", help="for the tenant")
@click.option("--dry-run", is_flag=True, help="say what would happen; change nothing")
@answers
@asked
def approve(asked: Asked, *, uid: str, words: str | None, dry_run: bool) -> None:
    """Grant it (operators)."""
    _act(asked, uid, "approve", {"words": words}, dry_run=dry_run or None)


@click.command()
@click.argument("uid")
@click.option("--words", required=True, help="why not")
@answers
@asked
def deny(asked: Asked, *, uid: str, words: str) -> None:
    """Refuse it, in words (operators)."""
    _act(asked, uid, "deny", {"words": words})


@click.command()
@click.argument("uid")
@click.option("--amount", type=Amount(), required=True, help="how much more; memory also as 64GiB")
@click.option("--until", help="a moment, ISO 8601; for good unless given")
@click.option("--words", help="for the tenant")
@answers
@asked
def counter(asked: Asked, *, uid: str, amount: int, until: str | None, words: str | None) -> None:
    """Offer something else, which the tenant may accept (operators)."""
    _act(asked, uid, "counter", {"amount": amount, "until": until, "words": words})


@click.command()
@click.argument("uid")
@click.option("--if-version", type=click.INT, help="refuse (exit 3) unless the offer is still at this version")
@answers
@asked
def accept(asked: Asked, *, uid: str, if_version: int | None) -> None:
    """Take what the operator offers."""
    path = path_of(REQUEST, None, uid)
    with asked.api() as api:
        etag = api.get(path).etag if if_version is None else f'"{if_version}"'
        asked.show(api.post(f"{path}accept/", {}, etag=etag).body)


@click.command()
@click.argument("uid")
@answers
@asked
def withdraw(asked: Asked, *, uid: str) -> None:
    """Take it back."""
    _act(asked, uid, "withdraw", {})


def _act(asked: Asked, uid: str, act: str, said: dict[str, Any], **parameters: Any) -> None:
    body = {name: value for name, value in said.items() if value is not None}
    with asked.api() as api:
        asked.show(api.post(f"{path_of(REQUEST, None, uid)}{act}/", body, **parameters).body)
