"""The one error tree. The domain raises facts; `gpucloud.api.problems` alone knows status codes.

Five kinds: Conflict (the state forbids it), Denied (you may not), Missing (not there, or not yours), Invalid (it can
never be), Busy (try again). A subclass names the fact, gives its `code` (stable, kebab-case) and keeps typed `facts`.
"""

from typing import Any, ClassVar


class GpucloudError(Exception):
    """Base of everything that is refused on purpose."""

    code: ClassVar[str] = "error"
    title: ClassVar[str] = "Refused"

    def __init__(self, detail: str, **facts: Any) -> None:
        super().__init__(detail)
        self.detail = detail
        self.facts = facts


class Conflict(GpucloudError):
    """The state of things forbids it now."""

    code = "conflict"
    title = "The present state does not allow this"


class Denied(GpucloudError):
    """The caller is known and may not."""

    code = "denied"
    title = "Not allowed"


class Missing(GpucloudError):
    """It does not exist, or the caller may not know that it does."""

    code = "not-found"
    title = "Not found"


class Invalid(GpucloudError):
    """It can never be done as asked."""

    code = "invalid"
    title = "Cannot be done as asked"


class Busy(GpucloudError):
    """Not now; the same request may succeed later."""

    code = "busy"
    title = "Try again later"

    def __init__(self, detail: str, *, retry_after_seconds: int = 1, **facts: Any) -> None:
        super().__init__(detail, **facts)
        self.retry_after_seconds = retry_after_seconds


class PreconditionFailed(Conflict):
    """The caller's version is not the present one."""

    code = "stale-version"
    title = "Changed since you read it"


class PreconditionRequired(Conflict):
    """The change needs to say which version it was made from."""

    code = "version-required"
    title = "Say which version you change"
