"""Fields that a caller gives, as options and arguments; names, types, bounds and choices are the API's.

`schema.json` is made from docs/openapi.yaml by `make openapi`. What is written here is for people: short names of
options, words for null, and help texts where the API's own does not serve.
"""

import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

import click

from gpucloud_cli.amounts import AGO, AMOUNT, DURATION, IN, SIZE, Json, OrNull, Words
from gpucloud_cli.wording import FLAGS, HELP, NULLS

# Parameters that every list has; the commands have their own.
OF_EVERY_LIST = frozenset({"cursor", "limit", "live", "updated_since", "uid_prefix"})
# Fields that `run` sets itself, and `claim create` has beside the others.
OF_CREATE_ALONE = frozenset({"name", "lease_seconds", "remote"})


@dataclass(frozen=True)
class Field:
    """One field that a caller gives: an option, or the argument that names the object."""

    name: str
    kind: click.ParamType = click.STRING
    help: str = ""
    flag: str | None = None
    argument: bool = False
    required: bool = False
    many: bool = False

    @property
    def option(self) -> str:
        """Return `--core` for `core_request`, else the field's name with dashes and without `_seconds`."""
        return "--" + (self.flag or self.name.removesuffix("_seconds").replace("_", "-"))


@functools.cache
def schema() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the fields of every operation, such as `POST quotas/`."""
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(
        files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    )
    return found


def choices(operation: str, name: str) -> tuple[str, ...]:
    """Return the values that the API accepts for a field or parameter."""
    facts = schema()[operation][name]
    return tuple(facts.get("items", facts)["enum"])


def choice(operation: str, name: str) -> click.Choice[str]:
    """Return the type of an option with the API's choices."""
    return click.Choice(choices(operation, name))


def body_fields(
    operation: str, resource: str, *, without: Iterable[str] = (), key: str | None = None
) -> tuple[Field, ...]:
    """Return the fields of an operation's body; the field named `key` is an argument."""
    return tuple(
        _field(operation, resource, name, facts, argument=name == key)
        for name, facts in schema()[operation].items()
        if facts.get("in") != "query" and name not in without
    )


def filters(path: str, resource: str) -> tuple[Field, ...]:
    """Return the parameters by which a list can be narrowed."""
    operation = f"GET {path}"
    return tuple(
        _field(operation, resource, name, facts)
        for name, facts in schema()[operation].items()
        if name not in OF_EVERY_LIST
    )


def has_preview(operation: str) -> bool:
    """Return True if the operation can be made on trial (`?dry_run=true`)."""
    return "dry_run" in schema().get(operation, {})


def _field(operation: str, resource: str, name: str, facts: Mapping[str, Any], *, argument: bool = False) -> Field:
    asked = f"{resource}.{name}"
    keys = (f"{resource}?{name}", f"?{name}", name, asked) if facts.get("in") == "query" else (asked, name)
    null, kind = NULLS.get(asked, NULLS.get(name, "none")), _kind(operation, name, facts)
    return Field(
        name,
        OrNull(kind, null) if _takes_null(operation, resource, name) else kind,
        next((HELP[key] for key in keys if key in HELP), _sentence(facts.get("help", ""), null)),
        flag=FLAGS.get(asked, FLAGS.get(name)),
        argument=argument,
        required=bool(facts.get("required")),
        many=facts.get("type") == "array",
    )


def _takes_null(operation: str, resource: str, name: str) -> bool:
    """Return True if null has a word: it is more than not giving the option."""
    facts = schema()[operation][name]
    if not facts.get("nullable") or facts.get("in") == "query":
        return False
    changeable = name in schema().get(f"PATCH {operation.partition(' ')[2]}{{}}/", {})
    return changeable or operation.startswith("PATCH") or "required" in facts or f"{resource}.{name}" in NULLS


def _sentence(said: str, null: str) -> str:
    """Return the API's help in the form of an option's: without a capital and a period; null has its word."""
    plain = said.replace("Null:", f"{null}:").replace("null:", f"{null}:").rstrip(".")
    return plain[:1].lower() + plain[1:] if plain[1:2].islower() else plain


def _kind(operation: str, name: str, facts: Mapping[str, Any]) -> click.ParamType:
    """Return the type of an option: the API's choices and bounds, and units as people write them."""
    facts = facts.get("items", facts)
    if "enum" in facts:
        return click.Choice(facts["enum"])
    match facts.get("type"):
        case "integer":
            return _number(name, facts)
        case "object":
            return Words(none=operation.startswith("PATCH")) if facts.get("words") else Json()
        case "boolean":
            return click.BOOL
    if facts.get("format") == "date-time":
        # A list is narrowed to a time before now; what is planned comes after it.
        return AGO if operation.startswith("GET") else IN
    return click.STRING


def _number(name: str, facts: Mapping[str, Any]) -> click.ParamType:
    if facts.get("format") == "int64":
        return AMOUNT
    if name.endswith("_mib"):
        return SIZE
    if name.endswith("_seconds"):
        return DURATION
    low, high = facts.get("minimum"), facts.get("maximum")
    return click.INT if low is None and high is None else click.IntRange(low, high)


# Fields of a new claim, in `claim create` and in `run`.
CLAIM_FIELDS = tuple(
    replace(field, required=False) for field in body_fields("POST claims/", "claim", without=OF_CREATE_ALONE)
)
ROLES = choice("POST tenants/{}/members/", "role")
