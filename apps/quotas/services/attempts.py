"""Limits of attempts: an attempt is counted before the password is checked, so concurrent ones get no more.

Attempts are counted per account and address together, and per address; never per account alone: a stranger could then
lock its owner out from anywhere. A browser from which the user has signed in before counts apart from its address, so a
stranger behind the same address (an office, a proxy) cannot lock the user out either. The table's UPDATE decides for
all server processes; without the database nobody signs in anyway.
"""

import hashlib
import ipaddress
import unicodedata
from dataclasses import dataclass
from datetime import timedelta

from django.db import connection, transaction
from django.utils import timezone

from apps.quotas.models import Attempts
from gpucloud.errors import Busy

TAKE = """
INSERT INTO quotas_attempts AS had (key, taken, ends_at) VALUES (%(key)s, 1, %(end)s)
ON CONFLICT (key) DO UPDATE SET
    taken = CASE WHEN had.ends_at <= %(now)s THEN 1 ELSE had.taken + 1 END,
    ends_at = CASE WHEN had.ends_at <= %(now)s THEN excluded.ends_at ELSE had.ends_at END
WHERE had.ends_at <= %(now)s OR had.taken < %(most)s
RETURNING taken
"""


class TooManyAttempts(Busy, code="too-many-attempts", title="Too many attempts"):
    """All attempts of the window are used."""


@dataclass(frozen=True, slots=True)
class Limit:
    """Number of attempts under this name in a window, which begins with the first."""

    name: str
    most: int
    window: timedelta

    def key(self, *parts: str) -> str:
        """Return the digest under which the attempts are counted."""
        return hashlib.sha256("\n".join((self.name, *parts)).encode()).hexdigest()


# A user mistypes a password three times, not six; five attempts in a quarter of an hour are 175,000 a year.
ACCOUNT = Limit("account", 5, timedelta(minutes=15))
# Enough for an office behind one address; limits one guesser with many names.
ADDRESS = Limit("address", 50, timedelta(minutes=15))
# Each sends a request to the provider, and one sign-in needs two.
SIGN_ON = Limit("sign-on", 200, timedelta(minutes=15))
# 256 random bits cannot be guessed. This stops floods, and pipelines that retry with a dead token.
TOKEN = Limit("token", 300, timedelta(minutes=5))

# Invitation and reset links have 160 random bits or more; this stops floods. Correct links are not counted.
LINK = Limit("link", 30, timedelta(minutes=15))
# Requests for a reset mail, per address of the visitor; each may send a mail.
RESET = Limit("reset", 10, timedelta(hours=1))
# Reset mails to one user, whoever asks: nobody's mailbox is flooded.
RESET_MAIL = Limit("reset-mail", 3, timedelta(hours=1))


def network(address: str | None) -> str:
    """Return the counted network: IPv4 address, IPv6 /64 of one customer, or one name behind a Unix socket."""
    if address is None:
        return "local"
    parsed = ipaddress.ip_address(address)
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def spelling(account: str) -> str:
    """Return one form for every spelling of a name that signs the same user in.

    The sign-in form normalizes its input to NFKC, in which a full-width or a circled letter is the plain one.
    """
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", account).casefold()).strip()


def _keys(account: str, address: str | None, browser: str | None) -> list[tuple[Limit, str]]:
    name = spelling(account)
    if browser is not None:
        return [(ACCOUNT, ACCOUNT.key(name, "browser", browser))]
    place = network(address)
    return [(ADDRESS, ADDRESS.key(place)), (ACCOUNT, ACCOUNT.key(name, place))]


@transaction.atomic
def take_sign_in(*, account: str, address: str | None, browser: str | None = None) -> None:
    """Count an attempt, even for an unknown account. Raises TooManyAttempts, and counts nothing then."""
    for limit, key in _keys(account, address, browser):
        _take(limit, key)


@transaction.atomic
def give_back(*, account: str, address: str | None, browser: str | None = None) -> None:
    """Undo the count of a correct attempt: reset the account's, and return one to the address."""
    for limit, key in _keys(account, address, browser):
        if limit is ACCOUNT:
            Attempts.objects.filter(key=key).delete()
        else:
            with connection.cursor() as cursor:
                cursor.execute("UPDATE quotas_attempts SET taken = greatest(taken - 1, 0) WHERE key = %s", [key])


def count_sign_on(*, address: str | None) -> None:
    """Count a redirect to the identity provider or back. Raises TooManyAttempts."""
    _take(SIGN_ON, SIGN_ON.key(network(address)))


def count_wrong_token(*, address: str | None) -> None:
    """Count a wrong token; valid ones from the same address keep working. Raises TooManyAttempts."""
    _take(TOKEN, TOKEN.key(network(address)))


def count_wrong_link(*, address: str | None) -> None:
    """Count a link that does not work; working ones are never refused. Raises TooManyAttempts."""
    _take(LINK, LINK.key(network(address)))


def count_reset(*, address: str | None) -> None:
    """Count a request for a reset mail, for an existing account or not. Raises TooManyAttempts."""
    _take(RESET, RESET.key(network(address)))


def take(limit: Limit, *parts: str) -> int:
    """Count one of the limit's attempts for these parts; return how many are left. Raises TooManyAttempts."""
    return _take(limit, limit.key(*parts))


def forget() -> int:
    """Delete ended windows; return their number."""
    return Attempts.objects.filter(ends_at__lte=timezone.now()).delete()[0]


def _take(limit: Limit, key: str) -> int:
    now = timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(TAKE, {"key": key, "now": now, "end": now + limit.window, "most": limit.most})
        if (row := cursor.fetchone()) is not None:
            return limit.most - int(row[0])
    end = Attempts.objects.filter(key=key).values_list("ends_at", flat=True).first() or now
    seconds = max(1, int((end - now).total_seconds()) + 1)
    raise TooManyAttempts(
        f"Too many attempts: try again in {_in_words(seconds)}.", retry_after_seconds=seconds, most=limit.most
    )


def _in_words(seconds: int) -> str:
    minutes = -(-seconds // 60)
    return f"{minutes} minutes" if minutes > 1 else "one minute"
