"""Archives of files that jobs unpack: uploaded in pieces, stored once in a tenant, read by the nodes of their runs."""

import hashlib
from datetime import timedelta
from uuid import UUID

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, Sum
from django.utils import timezone

from apps.jobs.models import OPEN, Job, JobFiles, JobFilesPiece
from apps.nodes.models import Node
from apps.quotas.models import Tenant
from apps.quotas.principals import Principal
from apps.quotas.services import audit
from apps.scheduling.models import Assignment
from gpucloud import locks
from gpucloud.api import etags
from gpucloud.errors import Conflict, Invalid

# One request, and one row.
MOST_PIECE_BYTES = 512 << 10
# An upload that nobody has used is kept so long.
UNUSED = timedelta(days=1)
# The first bytes of what the node can unpack.
KINDS = {b"\x1f\x8b": ".tar.gz", b"PK": ".zip"}


class FilesTooLarge(Invalid, code="files-too-large", title="The files are too large"):
    """The archive is above the limit."""


class FilesRefused(Invalid, code="files-refused", title="The files are refused"):
    """The content is not what was announced, or no archive."""


class TooManyFiles(Conflict, code="too-many-files", title="Too many files are stored"):
    """The tenant stores as much as it may."""


class PieceAfterGap(Conflict, code="piece-after-gap", title="A piece is missing before this one"):
    """The offset is beyond what is stored."""


@transaction.atomic
def announce_files(*, principal: Principal, tenant: Tenant, sha256: str, size: int) -> JobFiles:
    """Return the tenant's archive with this digest, made if there is none. Raises FilesTooLarge, TooManyFiles."""
    principal.require_role(tenant, "member")
    if size > settings.JOB_FILES_MIB << 20:
        raise FilesTooLarge(
            f"{size} bytes are above the limit of {settings.JOB_FILES_MIB} MiB: leave large files out, and let the job "
            "fetch them itself."
        )
    # Uploads that are announced together are counted one after the other.
    locks.serialize_transaction(f"job files of tenant {tenant.pk}")
    found = JobFiles.objects.filter(tenant=tenant, sha256=sha256).first()
    if found is not None:
        if found.size != size:
            raise FilesRefused(f"Files of this digest have {found.size} bytes, not {size}.")
        # It is needed again: the day without use begins anew.
        found.save(update_fields=["updated_at"])
        return found
    held = JobFiles.objects.filter(tenant=tenant).aggregate(held=Sum("size"))["held"] or 0
    if held + size > settings.JOB_OUTPUT_MIB << 20:
        raise TooManyFiles(
            f"{tenant.slug} stores {held >> 20} of {settings.JOB_OUTPUT_MIB} MiB of files: those of a job are removed "
            f"{settings.JOB_OUTPUT_DAYS} days after its end."
        )
    made = JobFiles.objects.create(tenant=tenant, sha256=sha256, size=size, created_by=principal.name)
    audit.record(principal, "job-files.create", made, after={"sha256": sha256, "size": size})
    return made


@transaction.atomic
def store_piece(
    *, principal: Principal, files: JobFiles, offset: int, content: bytes, versions: etags.Versions = None
) -> JobFiles:
    """Store what is new of a piece; the last one completes the archive, if everything has the digest.

    If it has not, nothing stays stored, and `reason` says why. Raises PieceAfterGap, FilesRefused.
    """
    principal.require_role(files.tenant, "member")
    locked = etags.lock(files, versions, "tenant")
    if offset > locked.stored_bytes:
        raise PieceAfterGap(
            f"{locked.stored_bytes} bytes are stored: go on at offset {locked.stored_bytes}.",
            stored_bytes=locked.stored_bytes,
        )
    fresh = content[locked.stored_bytes - offset :]
    if locked.stored_bytes + len(fresh) > locked.size:
        raise FilesRefused(f"{locked.size} bytes were announced, and this is more.")
    if fresh:
        JobFilesPiece.objects.create(files=locked, offset=locked.stored_bytes, data=fresh)
        locked.change(stored_bytes=locked.stored_bytes + len(fresh), reason=None)
        if locked.stored_bytes == locked.size:
            _complete(locked)
    return locked


def _complete(files: JobFiles) -> None:
    """Accept what is stored, or remove it."""
    reason = _find_fault(files)
    if reason is None:
        files.change(complete=True)
    else:
        files.pieces.all().delete()
        files.change(stored_bytes=0, reason=reason)


def _find_fault(files: JobFiles) -> str | None:
    """Return why the stored content is refused."""
    digest, begin = hashlib.sha256(), b""
    for piece in files.pieces.order_by("offset").iterator(chunk_size=4):
        begin = begin or bytes(piece.data[:2])
        digest.update(piece.data)
    if digest.hexdigest() != files.sha256:
        return f"The content has the digest {digest.hexdigest()}, not {files.sha256}: send it again."
    if begin not in KINDS:
        return f"This is no archive that a node unpacks: {' or '.join(KINDS.values())}."
    return None


def find_files(tenant: Tenant, uid: UUID) -> JobFiles | None:
    """Return the complete archive of the tenant."""
    return JobFiles.objects.filter(tenant=tenant, uid=uid, complete=True).first()


def read_piece(node: Node, run_uid: UUID, offset: int) -> bytes | None:
    """Return the piece from the offset on, for the node that has the run; None for others, and past the end."""
    placed = Assignment.objects.live().filter(gpu__node=node).values("claim")
    files = Job.objects.open().filter(run_uid=run_uid, claim__in=placed).values("files")
    piece = JobFilesPiece.objects.filter(files__in=files, offset__lte=offset).order_by("offset").last()
    return (bytes(piece.data)[offset - piece.offset :] or None) if piece is not None else None


def forget_files(*, days: int) -> int:
    """Delete the archives of jobs that all ended so many days ago, and those that nobody used; return how many."""
    now = timezone.now()
    needed = Q(state__in=OPEN) | Q(ended_at__gte=now - timedelta(days=days))
    kept = Exists(Job.objects.filter(needed, files=OuterRef("pk")))
    unused = JobFiles.objects.filter(~kept, updated_at__lt=now - UNUSED)
    with transaction.atomic():
        found = list(unused.select_for_update(of=("self",)).values_list("pk", flat=True))
        JobFiles.objects.filter(pk__in=found).delete()
    return len(found)
