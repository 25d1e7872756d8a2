"""OpenAPI: every operation documents the problems that it may answer, which drf-spectacular does not do by itself."""

from typing import Any

from drf_spectacular.openapi import AutoSchema

PROBLEM = {
    "type": "object",
    "description": "RFC 9457 problem details; further members are typed facts of this problem.",
    "required": ["type", "title", "status", "detail"],
    "properties": {
        "type": {"type": "string", "example": "/problems/quota-exceeded"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {"type": "object", "additionalProperties": True, "description": "By field, where fields are wrong."},
    },
    "additionalProperties": True,
}
READS = {
    "400": "A query parameter is wrong",
    "401": "No valid token or session",
    "403": "Not allowed",
    "404": "Not found, or not yours",
    "429": "Too many requests: wait as long as Retry-After says",
}
WRITES = READS | {
    "400": "Fields are wrong",
    "409": "The present state does not allow it",
    "412": "Changed since it was read",
    "413": "The body is too large",
    "415": "The body is not JSON",
    "422": "It can never be done as asked",
    "428": "If-Match is missing",
}


def add_problems(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Postprocessing hook of drf-spectacular."""
    result["components"].setdefault("schemas", {})["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result["paths"].values():
        for method, operation in operations.items():
            for status, text in (READS if method == "get" else WRITES).items():
                operation["responses"].setdefault(status, {"description": text, "content": content})
    return result


def refuse_what_cannot_be_set(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Postprocessing hook of drf-spectacular: bodies are strict, and a PATCH names something."""
    for name, schema in result["components"]["schemas"].items():
        if name.endswith("Request") and schema.get("type") == "object":
            schema["additionalProperties"] = False
            if name.startswith("Patched"):
                schema["minProperties"] = 1
    return result


class Schema(AutoSchema):
    """Knows our list views, which are no view sets, by their attribute `lists`."""

    def _is_list_view(self, serializer: Any = None) -> bool:
        return self.method == "GET" and getattr(self.view, "lists", False)

    def _is_create_operation(self) -> bool:
        """A POST to a list makes a row and answers 201."""
        return self.method == "POST" and getattr(self.view, "lists", False)
