"""The filled database from the load generator's side."""

from dataclasses import dataclass

SECRET = "bench"  # noqa: S105 - of a database that lives as long as the benchmark


@dataclass(frozen=True)
class FilledNode:
    """A node as its simulated agent knows it."""

    uid: str
    name: str
    gpus: list[str]
    assignments: list[str]
    claims: list[str]


@dataclass(frozen=True)
class Filled:
    """Identities and tokens of the benchmark's requests."""

    nodes: list[FilledNode]
    # An operator's, for the API and for pages.
    token: str
    cookie: str
    # A member's of each tenant, for pages; a claim's tenant is its number modulo their count.
    cookies: list[str]
