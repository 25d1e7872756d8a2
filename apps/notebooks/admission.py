"""Admission of requests at a notebook's host: by their origin, and by the entry in their cookie."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from channels.db import database_sync_to_async
from django.conf import settings
from django.db import DatabaseError
from redis.exceptions import RedisError

from apps.notebooks import entries, hosts, policy
from apps.notebooks.entries import Entry, NotEntered
from apps.notebooks.pages import Refused, Send
from apps.tunnels.rights import JobDoesNotRun, Opening
from gpucloud import hints

# Exchanges a ticket for the cookie; nothing of Jupyter is below it.
ENTRANCE = "/.gpucloud/enter"
# A right that is taken away counts within this time.
REMEMBERED_SECONDS, MOST_REMEMBERED = 2.0, 1000
# While something lasts, a right that is taken away, or the run's end, ends it within this time.
ASK_AGAIN_SECONDS = 10.0
FOREIGN = "A page of another origin has made the browser ask this: open the notebook from its page in the console."

_remembered: dict[Entry, tuple[float, Opening]] = {}


def cookie_name() -> str:
    """Return the name of the cookie: by its prefix, no other host can have set one that is sent by TLS only."""
    return policy.SECURE_COOKIE if _is_secure() else policy.PLAIN_COOKIE


def _is_secure() -> bool:
    return bool(settings.NOTEBOOKS_URL.startswith("https://"))


async def admit(uid: UUID | None, scope: dict[str, Any], *, is_use: bool) -> tuple[Entry, Opening]:
    """Return who asks, and what they may open. Raises Refused, GpucloudError, DatabaseError."""
    if uid is None:
        raise Refused(404, "No notebook has this address.")
    headers, own = scope["headers"], hosts.origin_of(uid)
    if scope["type"] == "websocket":
        is_foreign = policy.find(headers, b"origin") != own
    else:
        is_foreign = policy.is_foreign(headers, scope["method"], own)
    if is_foreign:
        raise Refused(403, FOREIGN)
    text = policy.cookie_of(headers, cookie_name())
    if not text:
        raise NotEntered("Open the notebook from its page in the console.")
    entry = entries.read_cookie(text, uid)
    return entry, await check(entry, scope, is_use=is_use)


async def check(entry: Entry, scope: dict[str, Any], *, is_use: bool) -> Opening:
    """Return what the person may open, as it was REMEMBERED_SECONDS ago at most. Raises as `entries.authorize`."""
    found, now = _remembered.get(entry), time.monotonic()
    if found is not None and now - found[0] < REMEMBERED_SECONDS and not is_use:
        return found[1]
    source = scope["client"][0] if scope.get("client") else None
    try:
        opening = await database_sync_to_async(entries.authorize)(entry, source, is_use=is_use)
    except Exception:
        _remembered.pop(entry, None)
        raise
    if len(_remembered) >= MOST_REMEMBERED:
        _remembered.clear()
    _remembered[entry] = now, opening
    return opening


async def watch(entry: Entry, opening: Opening, scope: dict[str, Any], is_used: Callable[[], bool]) -> None:
    """Ask again and again, until the person's rights, their session or the run end. Raises as `check`."""
    while True:
        await asyncio.sleep(ASK_AGAIN_SECONDS)
        try:
            present = await check(entry, scope, is_use=is_used())
        except (DatabaseError, RedisError, OSError):
            continue  # nothing is known to have changed
        if present.run_uid != opening.run_uid:
            raise JobDoesNotRun("The run has ended.")


async def enter(uid: UUID | None, scope: dict[str, Any], send: Send) -> None:
    """Exchange a ticket for the cookie of this host, once. Raises as `admit`, and RedisError."""
    if uid is None or scope["method"] != "GET":
        raise Refused(404, "No notebook has this address.")
    if policy.is_foreign(scope["headers"], "GET", hosts.origin_of(uid)):
        raise Refused(403, FOREIGN)
    ticket = parse_qs(scope["query_string"].decode("latin-1")).get("ticket", [""])[0]
    entry = entries.read_ticket(ticket, uid)
    key = hints.channel_of(f"notebook-ticket-{hashlib.sha256(ticket.encode()).hexdigest()}")
    if not await hints.bus().redis.set(key, 1, nx=True, ex=2 * entries.TICKET_SECONDS):
        raise NotEntered("This link was used: open the notebook from its page in the console.")
    opening = await check(entry, scope, is_use=True)
    await database_sync_to_async(entries.record_entered)(opening)
    flags = "; Path=/; HttpOnly; SameSite=Lax" + ("; Secure" if _is_secure() else "")
    cookie = f"{cookie_name()}={entries.make_cookie(entry)}{flags}"
    headers = [
        (b"location", b"/"),
        (b"set-cookie", cookie.encode()),
        (b"cache-control", b"no-store"),
        (b"referrer-policy", b"no-referrer"),
        (b"content-length", b"0"),
    ]
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
