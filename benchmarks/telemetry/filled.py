"""What the load generator knows of the filled database."""

from dataclasses import dataclass

SECRET = "bench"  # noqa: S105 - of a database that lives as long as the benchmark


@dataclass(frozen=True)
class FilledNode:
    """What its simulated agent knows."""

    uid: str
    name: str
    gpus: list[str]
    assignments: list[str]
    claims: list[str]


@dataclass(frozen=True)
class Filled:
    """Everything that the benchmark asks with."""

    nodes: list[FilledNode]
    # Of an operator, for the API and for pages.
    token: str
    cookie: str
    # Of a member of each tenant, for pages; a claim's tenant is its number modulo their count.
    cookies: list[str]
