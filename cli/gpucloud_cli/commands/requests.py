"""`quota-request accept`: an answer to one version of an offer."""

import click

from gpucloud_cli.options import Invocation, output_options, pass_invocation
from gpucloud_cli.resources import BY_NAME
from gpucloud_cli.verbs import path_of

REQUEST = BY_NAME["quota-request"]


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


COMMANDS = {"quota-request": (accept,)}
