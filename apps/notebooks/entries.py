"""Entries of people to notebooks: a ticket from the console, used once, and the cookie that it is exchanged for.

Both are signed and name the notebook, the person and, by a digest, the session of the console. So neither is good for
another notebook, and both end with the session: by signing out, by a new password, or by its time.
"""

import secrets
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.core import signing
from django.utils import timezone
from django.utils.crypto import constant_time_compare, salted_hmac

from apps.jobs.models import Job, JobKind, JobState
from apps.nodes.models import Node
from apps.quotas import principals
from apps.quotas.models import Role, User, UserSession
from apps.quotas.services import audit
from apps.quotas.sessions import SessionStore
from apps.tunnels.rights import JobDoesNotRun, NoSuchJob, Opening
from gpucloud.errors import Denied

TICKET_SECONDS = 60
TICKET, COOKIE = "gpucloud.notebooks.ticket", "gpucloud.notebooks.cookie"


class NotEntered(Denied, code="notebook-not-entered", title="The notebook was not opened from the console"):
    """There is no valid entry: the person opens the notebook from its page."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A person at a notebook."""

    notebook: str
    user: int
    session: str


def make_ticket(user: User, session_key: str, notebook: UUID) -> str:
    """Return a ticket with which this person's browser may enter, once, within a minute."""
    entry = Entry(str(notebook), user.pk, _digest(session_key))
    return signing.dumps({**asdict(entry), "nonce": secrets.token_hex(8)}, salt=TICKET)


def read_ticket(text: str, notebook: UUID) -> Entry:
    """Return the entry of a ticket of this notebook. Raises NotEntered."""
    return _read(text, notebook, salt=TICKET, max_age=TICKET_SECONDS)


def make_cookie(entry: Entry) -> str:
    """Return the value of the entry's cookie."""
    return signing.dumps(asdict(entry), salt=COOKIE)


def read_cookie(text: str, notebook: UUID) -> Entry:
    """Return the entry of a cookie of this notebook. Raises NotEntered."""
    return _read(text, notebook, salt=COOKIE, max_age=settings.SESSION_LIFETIME_SECONDS)


def _read(text: str, notebook: UUID, *, salt: str, max_age: int) -> Entry:
    try:
        values = signing.loads(text, salt=salt, max_age=max_age)
        entry = Entry(values["notebook"], values["user"], values["session"])
    except (signing.BadSignature, KeyError, TypeError) as error:
        raise NotEntered("Open the notebook from its page in the console.") from error
    if entry.notebook != str(notebook):
        raise NotEntered("This entry is of another notebook: open this one from its page in the console.")
    return entry


def authorize(entry: Entry, source_ip: str | None, *, is_use: bool) -> Opening:
    """Return what the person may open now. `is_use`: their session was used. Raises NotEntered, and as a terminal."""
    store, user = _find_session(entry)
    if is_use and store.modified:
        store.save()
    principal = principals.of_user(user, source_ip=source_ip)
    jobs = Job.objects.visible_to(principal).filter(kind=JobKind.NOTEBOOK)
    job = jobs.select_related("tenant").filter(uid=entry.notebook).first()
    if job is None:
        raise NoSuchJob("There is no notebook of this address that you may see.")
    principal.require_role(job.tenant, Role.MEMBER)
    node = Node.objects.filter(name=job.run_node).first() if job.state == JobState.RUNNING else None
    if node is None or job.stop_requested_at is not None:
        state = "being stopped" if node is not None else job.state
        raise JobDoesNotRun(f"The notebook does not run: it is {state}. Its page in the console says more.")
    return Opening(principal, job, str(job.run_uid), node)


def _find_session(entry: Entry) -> tuple[Any, User]:
    """Return the console's session of an entry, and its user. Raises NotEntered."""
    rows = UserSession.objects.filter(user=entry.user, expire_date__gt=timezone.now())
    for key in rows.values_list("session_key", flat=True):
        if constant_time_compare(_digest(key), entry.session):
            store: Any = SessionStore(key)
            # Django's own check: of the password, too.
            request: Any = SimpleNamespace(session=store)
            user = get_user(request)
            if isinstance(user, User) and user.is_active:
                return store, user
    raise NotEntered("Your session in the console has ended: sign in there, and open the notebook from its page.")


def record_entered(opening: Opening) -> None:
    """Record in the audit log that a person has entered."""
    after = {"run": opening.run_uid, "node": opening.node.name}
    audit.record(opening.principal, "job.open-notebook", opening.job, after=after)


def _digest(session_key: str) -> str:
    return salted_hmac("gpucloud.notebooks.session", session_key, algorithm="sha256").hexdigest()
