"""Serving clusters, which wait for every answer: without a restart for a renewed certificate, nor pauses for memory."""

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
Signature = tuple[tuple[int, int, int], ...]


class Certificate:
    """What a listener shows, and whom it believes. Connections that stand keep that; new ones have what the files say.

    Each handshake is given the newest context: an authority that was replaced is believed no longer, which adding to
    the one context that the listener began with could not do.
    """

    def __init__(self, context: ssl.SSLContext, certificate: Path, key: Path, *, authority: Path | None = None) -> None:
        """`context` is the listener's; `authority`: who signs its clients' certificates. Raises OSError, SSLError."""
        self._certificate, self._key, self._authority = certificate, key, authority
        self._read, self._newest = self._signature(), self._new_context()
        # Nobody comes in again by what was believed before.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.sni_callback = self._begin

    def refresh(self) -> bool:
        """Read the files again where they are others than before; whether new connections have others now.

        While they do not fit together, as between the writing of the two, what was read before stays.
        """
        now = self._signature()
        if now is None or now == self._read:
            return False
        try:
            self._newest = self._new_context()
        except (OSError, ssl.SSLError) as error:
            logger.warning("the new certificate %s is not taken: %s", self._certificate, error)
            return False
        self._read = now
        logger.info("the new certificate %s is taken", self._certificate)
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
        """Look for ever, in a thread that ends with the process."""

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
    """Serve until SIGTERM or SIGINT, with TLS where a certificate is named. `options` are uvicorn's.

    With `authority` only clients with a certificate of it are answered.
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


def configuration(app: Any, **options: Any) -> uvicorn.Config:
    """Return uvicorn's configuration of a listener for clusters, with bounded requests and without websockets."""
    return uvicorn.Config(
        app,
        http=BoundedProtocol,
        ws="none",
        lifespan="off",
        access_log=False,
        # Nobody stands before this listener: what a header says of where a caller comes from, the caller says.
        proxy_headers=False,
        log_config=None,
        **options,
    )
