"""The error tree. The domain raises facts; only `gpucloud.api.problems` knows status codes.

There are five kinds: Conflict (the state forbids it), Denied (not permitted), Missing (does not exist, or not for the
caller), Invalid (never possible), Busy (try again). A subclass names the fact, gives its `code` (stable, kebab-case)
and keeps typed `facts`.
"""

from typing import Any, ClassVar


class GpucloudError(Exception):
    """Base of all deliberate refusals."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Refused"

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts


class Conflict(GpucloudError):
    """The current state forbids the request."""

    code = "conflict"
    title = "The present state does not allow this"


class Denied(GpucloudError):
    """The caller is known and not permitted."""

    code = "denied"
    title = "Not allowed"


class Missing(GpucloudError):
    """The object does not exist, or the caller may not know that it does."""

    code = "not-found"
    title = "Not found"


class Invalid(GpucloudError):
    """The request can never succeed as it is."""

    code = "invalid"
    title = "Cannot be done as asked"


class Busy(GpucloudError):
    """The request may succeed later."""

    code = "busy"
    title = "Try again later"

    def __init__(self, detail: str, *, retry_after_seconds: int = 1, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.retry_after_seconds = retry_after_seconds


class PreconditionFailed(Conflict):
    """The caller's version is not the current one."""

    code = "stale-version"
    title = "Changed since you read it"


class PreconditionRequired(Conflict):
    """The change must name the version that it was made from."""

    code = "version-required"
    title = "Say which version you change"
