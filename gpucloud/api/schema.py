"""OpenAPI generation: documents the problems of each operation, which drf-spectacular does not do by itself."""

from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.serializers import ListSerializer

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
    "406": "No such format",
    "409": "The present state has no answer to this",
    "422": "It can never be answered as asked",
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
    """Add problem responses to each operation; a postprocessing hook of drf-spectacular."""
    result["components"].setdefault("schemas", {})["Problem"] = PROBLEM
    content = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for operations in result["paths"].values():
        for method, operation in operations.items():
            for status, text in (READS if method == "get" else WRITES).items():
                operation["responses"].setdefault(status, {"description": text, "content": content})
    return result


def forbid_unknown_properties(result: dict[str, Any], **_: Any) -> dict[str, Any]:
    """Forbid unknown properties and empty PATCH bodies; a postprocessing hook of drf-spectacular."""
    for name, schema in result["components"]["schemas"].items():
        if name.endswith("Request") and schema.get("type") == "object":
            schema["additionalProperties"] = False
            if name.startswith("Patched"):
                schema["minProperties"] = 1
    for operations in result["paths"].values():
        if "requestBody" in (patch := operations.get("patch", {})):
            patch["requestBody"]["required"] = True
    return result


IF_MATCH = "The entity tag that was read: refused with 412 where the present one is another. Any: `*`."
IDEMPOTENCY_KEY = "Any text of your own: the same request with the same key gets the first answer, and has one effect."


class Schema(AutoSchema):
    """Schema of our views: recognizes lists by `lists` or `many=True`, and adds the headers of changes."""

    def get_override_parameters(self) -> list[Any]:
        """Add `If-Match` where there are entity tags, and `Idempotency-Key` where a repeated POST has one effect."""
        found = list(super().get_override_parameters())
        if self.method != "GET" and getattr(self.view, "tagged", False):
            required = self.method in getattr(self.view, "tag_required", ())
            found.append(_header("If-Match", IF_MATCH, required=required))
        if self.method == "POST" and getattr(getattr(self.view, "post", None), "idempotent", False):
            found.append(_header("Idempotency-Key", IDEMPOTENCY_KEY))
        return found

    def get_response_serializers(self) -> Any:
        """Return the serializer of answers, which some views have beside that of bodies."""
        return (self.method != "GET" and getattr(self.view, "answer_class", None)) or super().get_response_serializers()

    def _is_list_view(self, serializer: Any = None) -> bool:
        listed = getattr(self.view, "lists", False) or isinstance(serializer, ListSerializer)
        return self.method == "GET" and listed

    def _is_create_operation(self) -> bool:
        """Return True for a POST to a list, which creates a row and answers 201."""
        return self.method == "POST" and getattr(self.view, "lists", False)


def _header(name: str, description: str, *, required: bool = False) -> OpenApiParameter:
    return OpenApiParameter(name, OpenApiTypes.STR, OpenApiParameter.HEADER, required=required, description=description)
