"""Checks of the control plane as this machine sees it: reachable, trusted certificate, same time."""

import email.utils
import socket
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

from agent import statefile
from agent.check.finding import failed, ok, warning
from agent.server import identity, rest
from agent.wire import Check

TIMEOUT_SECONDS = 10.0
DAY_SECONDS = 86_400.0
EXPIRES_SOON_DAYS = 14
# HTTP's date counts whole seconds; a larger skew is a difference of the clocks.
SKEW_SECONDS = 5.0
# With a larger skew, valid certificates and tokens are refused.
MOST_SKEW_SECONDS = 300.0


class Answered(NamedTuple):
    """The facts of one answer."""

    status: int
    # The server's clock minus ours; None if the answer has no date.
    skew_seconds: float | None


def enrolment(state_dir: Path) -> Check:
    """Check that this machine is enrolled as a node."""
    try:
        me = identity.load(state_dir)
    except (statefile.Damaged, OSError) as error:
        return failed("enrolled", f"the identity cannot be read: {error}", "Enrol again: `gpucloud node enrol NAME`.")
    if me is None or me.node_uid is None:
        return warning("enrolled", "not yet a node", "`gpucloud node add NAME` prints the command that makes it one.")
    return ok("enrolled", f"node {me.node_name}")


def reachable(server: str) -> list[Check]:
    """Check that the server answers, its certificate, and the difference of the clocks."""
    try:
        answer = _ask(f"{server}/healthz")
    except (OSError, ValueError) as error:
        return [_unreachable(server, getattr(error, "reason", error))]
    if answer.status != 200:
        words = f"{server} answers HTTP {answer.status} to /healthz"
        return [failed("server", words, "Is it the control plane's address? Its own log says what is wrong there.")]
    found = [_certificate(server)]
    if answer.skew_seconds is not None:
        found.append(clock(answer.skew_seconds))
    return found


def clock(skew_seconds: float) -> Check:
    """Check the difference between this machine's clock and the server's."""
    words = f"{abs(skew_seconds):.0f} s {'behind' if skew_seconds > 0 else 'before'} the server's clock"
    cure = "Let chrony or systemd-timesyncd set this machine's clock."
    if abs(skew_seconds) > MOST_SKEW_SECONDS:
        return failed("clock", words, cure)
    return warning("clock", words, cure) if abs(skew_seconds) > SKEW_SECONDS else ok("clock", "as the server's")


def _ask(url: str) -> Answered:
    request = urllib.request.Request(url)  # noqa: S310 - the settings admit http and https only
    before = time.time()
    try:
        with rest.opener(url).open(request, timeout=TIMEOUT_SECONDS) as answer:
            status, headers = answer.status, answer.headers
    except urllib.error.HTTPError as error:
        with error:
            status, headers = error.code, error.headers
    date = headers.get("Date")
    if date is None:
        return Answered(status, None)
    # The date is truncated to the second: on average it is half a second behind.
    theirs = email.utils.parsedate_to_datetime(date).timestamp() + 0.5
    return Answered(status, theirs - (before + time.time()) / 2)


def _unreachable(server: str, reason: object) -> Check:
    if isinstance(reason, ssl.SSLCertVerificationError):
        return failed(
            "server",
            f"{server} shows a certificate that this machine does not trust: {reason.verify_message}",
            "Add its authority to the machine's store, or name it in SSL_CERT_FILE; a wrong clock does this, too.",
        )
    if isinstance(reason, socket.gaierror):
        return failed("server", f"the name in {server} is not known here", "Check the address and this machine's DNS.")
    return failed("server", f"{server} does not answer: {reason}", "Check the address, and firewalls in between.")


def _certificate(server: str) -> Check:
    parts = urllib.parse.urlsplit(server)
    if parts.scheme != "https":
        if rest.is_loopback(server):
            return ok("server", f"{server} answers")
        return warning(
            "server",
            f"{server} answers, without TLS",
            "The agent's key and the limits cross the network in clear: put the server behind a TLS proxy.",
        )
    try:
        days = _expires_seconds(parts.hostname or "", parts.port or 443) / DAY_SECONDS
    except OSError:
        # Behind a proxy, the server may be reachable through the proxy only.
        return ok("server", f"{server} answers, with a certificate that is trusted")
    words = f"{server} answers, with a certificate that is valid for {days:.0f} more days"
    return ok("server", words) if days >= EXPIRES_SOON_DAYS else warning("server", words, "Renew it on the server.")


def _expires_seconds(host: str, port: int) -> float:
    context = ssl.create_default_context()
    with (
        socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        certificate = secure.getpeercert() or {}
    return ssl.cert_time_to_seconds(str(certificate["notAfter"])) - time.time()
