"""Fields of every operation of the API, as `gpucloud` reads them; made from docs/openapi.yaml."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

WRITTEN = Path(__file__).resolve().parent.parent / "cli" / "gpucloud_cli" / "schema.json"
PREFIX = "/api/v1/"
# Facts about a value that an option needs; the others say the same in more words.
FACTS = ("type", "format", "minimum", "maximum", "default", "nullable")


def render(document: str) -> str:
    """Return the fields of every operation as JSON, one field a line."""
    api = yaml.load(document, Loader=yaml.CSafeLoader)
    operations = [
        f"{json.dumps(name)}: {{\n{_lines(fields)}\n}}"
        for path, methods in api["paths"].items()
        for name, fields in _operations(path, methods, api["components"]["schemas"])
    ]
    return "{\n" + ",\n".join(operations) + "\n}\n"


def _lines(fields: Mapping[str, Any]) -> str:
    return ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(facts, ensure_ascii=False)}" for name, facts in fields.items()
    )


def _operations(
    path: str, methods: Mapping[str, Any], schemas: Mapping[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each method of a path with its query parameters and the fields of its body."""
    parts = ["{}" if part.startswith("{") else part for part in path.removeprefix(PREFIX).split("/")]
    for method, operation in methods.items():
        fields = {
            one["name"]: _facts(one["schema"], schemas, one.get("description", "")) | {"in": "query"}
            for one in operation.get("parameters", ())
            if one["in"] == "query"
        }
        content = operation.get("requestBody", {}).get("content", {})
        if "application/json" in content:
            body = schemas[_name(content["application/json"]["schema"])]
            required = body.get("required", ())
            for name, schema in body.get("properties", {}).items():
                fields[name] = _facts(schema, schemas) | ({"required": True} if name in required else {})
        yield f"{method.upper()} {'/'.join(parts)}", fields


def _facts(schema: Mapping[str, Any], schemas: Mapping[str, Any], description: str = "") -> dict[str, Any]:
    """Return the type, bounds, choices and help of one value; references are followed."""
    inner = _resolved(schema, schemas)
    found = {name: inner[name] for name in FACTS if name in inner}
    if "enum" in inner:
        found["enum"] = [value for value in inner["enum"] if value is not None]
    if inner.get("type") == "array":
        found["items"] = _facts(inner["items"], schemas)
    if isinstance(inner.get("additionalProperties"), dict):
        found["words"] = True
    # A list of the choices follows the help; the option has them anyhow.
    help_text = (schema.get("description") or description).partition("\n\n*")[0]
    if help_text and not help_text.startswith("* "):
        found["help"] = " ".join(help_text.split())
    return found


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema with what it refers to, or with the first of its alternatives."""
    if "$ref" in schema:
        return _resolved(schemas[_name(schema)], schemas)
    for alternatives in ("allOf", "oneOf"):
        if alternatives in schema:
            return _resolved(schema[alternatives][0], schemas) | {
                name: value for name, value in schema.items() if name != alternatives
            }
    return dict(schema)


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]
