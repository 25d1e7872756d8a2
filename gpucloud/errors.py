"""The error tree. The domain raises facts; only `gpucloud.api.problems` knows status codes.

There are five kinds: Conflict (the state forbids it), Denied (not permitted), Missing (does not exist, or not for the
caller), Invalid (never possible), Busy (try again). A subclass names the fact, says its `code` (stable,
kebab-case) and its `title` in its head (or has those of its kind), and keeps typed `facts`.
"""

from typing import Any, ClassVar


class GpucloudError(Exception):
    """Base of all deliberate refusals."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Refused"

    def __init_subclass__(cls, *, code: str = "", title: str = "") -> None:
        cls.code, cls.title = code or cls.code, title or cls.title

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts


class Conflict(GpucloudError, code="conflict", title="The present state does not allow this"):
    """The current state forbids the request."""


class Denied(GpucloudError, code="denied", title="Not allowed"):
    """The caller is known and not permitted."""


class Missing(GpucloudError, code="not-found", title="Not found"):
    """The object does not exist, or the caller may not know that it does."""


class Invalid(GpucloudError, code="invalid", title="Cannot be done as asked"):
    """The request can never succeed as it is."""


class Busy(GpucloudError, code="busy", title="Try again later"):
    """The request may succeed later."""

    def __init__(self, detail: str, *, retry_after_seconds: int = 1, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.retry_after_seconds = retry_after_seconds


class PreconditionFailed(Conflict, code="stale-version", title="Changed since you read it"):
    """The caller's version is not the current one."""


class PreconditionRequired(Conflict, code="version-required", title="Say which version you change"):
    """The change must name the version that it was made from."""
