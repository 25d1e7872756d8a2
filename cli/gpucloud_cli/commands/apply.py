"""`apply` and `export`."""

import click


def join(root: click.Group) -> None:
    """Take part in the command tree."""
