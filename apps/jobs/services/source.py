"""The source of a job's working directory: an archive, a clone, or nothing."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from apps.jobs.models import JobFiles
from apps.jobs.services.files import find_files
from apps.quotas.models import Tenant
from gpucloud.errors import Missing


class NoSuchFiles(Missing, code="no-such-files", title="There are no such files"):
    """The archive does not exist, or is not complete, or is of another tenant."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Source:
    """The origin of the files in a run's working directory."""

    files: UUID | None = None
    git_url: str | None = None
    git_ref: str | None = None

    def fields(self, tenant: Tenant) -> dict[str, Any]:
        """Return the columns of a job. Raises NoSuchFiles."""
        return {"files": self._find(tenant), "git_url": self.git_url, "git_ref": self.git_ref}

    def _find(self, tenant: Tenant) -> JobFiles | None:
        if self.files is None:
            return None
        found = find_files(tenant, self.files)
        if found is None:
            raise NoSuchFiles(f"Tenant {tenant.slug} has no complete files {self.files}: upload them first.")
        return found

    def facts(self) -> dict[str, str]:
        """Return what the audit log says of it."""
        given = {"files": self.files, "git_url": self.git_url, "git_ref": self.git_ref}
        return {name: str(value) for name, value in given.items() if value is not None}


NOTHING = Source()
