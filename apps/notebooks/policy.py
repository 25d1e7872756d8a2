"""Origins and headers that pass between a browser and Jupyter."""

from collections.abc import Iterable
from http.cookies import CookieError, SimpleCookie

from apps.jobs.services.notebooks import token_of

Headers = list[tuple[bytes, bytes]]

SECURE_COOKIE, PLAIN_COOKIE = "__Host-gpucloud-notebook", "gpucloud-notebook"
# Of one connection (RFC 9110, 7.6.1), not of a message.
OF_CONNECTION = {
    b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip
# The server says these itself, or has checked them; Jupyter learns nothing of the browser's way.
NOT_TO_JUPYTER = OF_CONNECTION | {
    b"host", b"authorization", b"cookie", b"origin", b"referer", b"expect", b"forwarded", b"via", b"x-real-ip",
}  # fmt: skip
# A notebook decides for its own origin, not for the names around it, other origins, or the browser's other cookies.
NOT_TO_BROWSER = OF_CONNECTION | {
    b"server", b"set-cookie", b"strict-transport-security", b"alt-svc", b"clear-site-data", b"report-to", b"nel",
    b"reporting-endpoints", b"service-worker-allowed", b"public-key-pins",
}  # fmt: skip
# Other origins are the notebook's to name for nobody; the rest steers nginx, if it stands in front.
PREFIXES_KEPT = (b"access-control-", b"x-accel-", b"x-sendfile")
OWN_TO_BROWSER: Headers = [
    (b"content-security-policy", b"frame-ancestors 'self'"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


def find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> str:
    """Return a header; empty if there is none."""
    return next((value.decode("latin-1") for key, value in headers if key == name), "")


def is_foreign(headers: Headers, method: str, own: str) -> bool:
    """Return whether a page of another origin, also of another notebook, has made the browser send this.

    Following a link from elsewhere is allowed. Cookies do not tell: notebooks and console may be one site to a browser.
    """
    origin, site = find(headers, b"origin"), find(headers, b"sec-fetch-site")
    if origin and origin != own:
        return True
    if site in ("same-origin", "none"):
        return False
    if not site:
        # No browser of today, or no secure origin: then a page of another one at least cannot read the answer.
        return not origin and method not in ("GET", "HEAD")
    is_link = find(headers, b"sec-fetch-mode") == "navigate" and find(headers, b"sec-fetch-dest") == "document"
    return not (is_link and method in ("GET", "HEAD"))


def cookie_of(headers: Headers, name: str) -> str:
    """Return the value of our cookie; empty if there is none."""
    for text in (value.decode("latin-1") for key, value in headers if key == b"cookie"):
        for pair in text.split(";"):
            key, _, value = pair.strip().partition("=")
            if key == name:
                return value
    return ""


def to_jupyter(headers: Headers, run_uid: str) -> Headers:
    """Return the headers of a browser's request as Jupyter gets them: with its token, and no cookie of ours."""
    kept = [(name, value) for name, value in headers if name not in NOT_TO_JUPYTER | _named_by_connection(headers)]
    kept = [(name, value) for name, value in kept if not name.startswith((b"x-forwarded-", b"sec-websocket-"))]
    pairs = [pair.strip() for name, text in headers if name == b"cookie" for pair in text.split(b";")]
    own = (SECURE_COOKIE.encode(), PLAIN_COOKIE.encode())
    foreign = [pair for pair in pairs if pair and pair.partition(b"=")[0].strip() not in own]
    kept += [(b"cookie", b"; ".join(foreign))] if foreign else []
    # Jupyter answers to this name only.
    return [*kept, (b"host", b"localhost"), (b"authorization", f"token {token_of(run_uid)}".encode())]


def to_browser(headers: Headers) -> Headers:
    """Return the headers of Jupyter's answer as the browser gets them."""
    lower = [(name.lower(), value) for name, value in headers]
    dropped = NOT_TO_BROWSER | _named_by_connection(lower)
    kept = [(name, value) for name, value in lower if name not in dropped and not name.startswith(PREFIXES_KEPT)]
    cookies = [(name, value) for name, value in lower if name == b"set-cookie" and _is_harmless(value)]
    return [*kept, *cookies, *OWN_TO_BROWSER]


def _named_by_connection(headers: Headers) -> set[bytes]:
    return {word.strip().lower() for name, text in headers if name == b"connection" for word in text.split(b",")}


def _is_harmless(text: bytes) -> bool:
    """Return whether a cookie is for this host only, and not one of ours."""
    try:
        found = SimpleCookie(text.decode("latin-1"))
    except CookieError:
        return False
    own = {SECURE_COOKIE, PLAIN_COOKIE}
    return bool(found) and not own & found.keys() and not any(one["domain"] for one in found.values())
