"""TLS server for the extender and the webhooks: reloads renewed certificates without a restart."""

import logging
import ssl
import threading
import time
from pathlib import Path
from typing import Any

import uvicorn

from gpucloud.server.protocol import BoundedProtocol

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
# Answered to everybody: the kubelet asks from addresses of its own whether the loop moves.
ALIVE = "/livez"
Signature = tuple[tuple[int, int, int], ...]


class Certificate:
    """A listener's certificate and trusted authority, reloaded from files. Open connections keep theirs.

    Each handshake uses the newest context, so a replaced authority is no longer trusted; adding to the listener's first
    context could not remove it.
    """

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path, *, authority: Path | None = None) -> None:
        """Watch the files of the listener's `context`. Raises OSError, SSLError.

        `authority` signs the clients' certificates.
        """
        self._certificate, self._key, self._authority = certificate, key, authority
        self._read, self._newest = self._signature(), self._new_context()
        # No session resumption: it would skip the check against the present authority.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.sni_callback = self._begin

    def refresh(self) -> bool:
        """Read changed files again; return True if new connections use others now.

        While certificate and key do not match, as between the two writes, the previous ones stay.
        """
        now = self._signature()
        if now is None or now == self._read:
            return False
        try:
            self._newest = self._new_context()
        except (OSError, ssl.SSLError) as error:
            logger.warning("new certificate %s not loaded: %s", self._certificate, error)
            return False
        self._read = now
        logger.info("new certificate %s loaded", self._certificate)
        return True

    def _begin(self, handshake: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        handshake.context = self._newest

    def _new_context(self) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self._certificate, self._key)
        if self._authority is not None:
            made.load_verify_locations(self._authority)
            made.verify_mode = ssl.CERT_REQUIRED
        return made

    def keep(self) -> None:
        """Refresh every LOOK_SECONDS in a daemon thread."""

        def run() -> None:
            while True:
                time.sleep(LOOK_SECONDS)
                self.refresh()

        threading.Thread(target=run, name="certificate", daemon=True).start()

    def _signature(self) -> Signature | None:
        files = (self._certificate, self._key, *([self._authority] if self._authority else []))
        try:
            return tuple((at.st_ino, at.st_mtime_ns, at.st_size) for at in (file.stat() for file in files))
        except OSError:
            return None


def serve(app: Any, *, certificate: str, key: str, authority: str = "", **options: Any) -> None:
    """Serve until SIGTERM or SIGINT, with TLS if a certificate is given. `options` are uvicorn's.

    With `authority` only clients with a certificate signed by it are answered.
    """
    config = configuration(
        app,
        ssl_certfile=certificate or None,
        ssl_keyfile=key or None,
        ssl_ca_certs=authority or None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if authority else ssl.CERT_NONE,
        **options,
    )
    config.load()
    if config.ssl is not None:
        trusted = Path(authority) if authority else None
        Certificate(config.ssl, Path(certificate), Path(key or certificate), authority=trusted).keep()
    uvicorn.Server(config).run()


def answer_alive(app: Any) -> Any:
    """Return the application with the path ALIVE. A port alone accepts connections while nobody answers them."""

    async def answered(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] == ALIVE:
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"ok\n"})
        else:
            await app(scope, receive, send)

    return answered


def configuration(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of a listener for clusters, with bounded requests and without websockets."""
    return uvicorn.Config(
        answer_alive(app),
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        # There is no proxy before this listener: forwarding headers come from the caller.
        proxy_headers=False,
        log_config=None,
        **options,
    )
