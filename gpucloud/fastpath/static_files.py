"""Static files of the pages: named by content hash for permanent caching, and served without Django."""

import posixpath
import re
from collections.abc import Iterator
from typing import Any, Final

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.conf import settings
from django.core.files.base import ContentFile
from django.core.files.storage import InMemoryStorage
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage

IMPORT: Final = re.compile(r'^@import "([^"]+)";$', re.MULTILINE)


class Named(CompressedManifestStaticFilesStorage):  # type: ignore[misc]  # no types are published
    """The storage of `collectstatic`: files with a content hash in the name, each with a gzipped copy."""

    # JavaScript modules import each other: rewrite the names there too.
    support_js_module_import_aggregation = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Source maps are not served, so references to them stay unchanged.
        known: Any = super().patterns
        self.patterns: Any = tuple(
            (suffix, tuple(one for one in patterns if "sourceMappingURL" not in str(one))) for suffix, patterns in known
        )
        super().__init__(*args, **kwargs)

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        """Inline imported sheets into the sheet that imports them: the browser makes one request before it paints."""
        whole = InMemoryStorage()
        for name in [name for name in paths if name.startswith("css/")]:
            whole.save(name, ContentFile(_whole(name, paths)))
            paths[name] = whole, name
        yield from super().post_process(paths, dry_run, **options)


def _whole(name: str, paths: dict[str, Any]) -> str:
    """Return the sheet with its imports inlined."""
    storage, path = paths[name]
    with storage.open(path) as file:
        text: str = file.read().decode()
    return IMPORT.sub(lambda found: _whole(posixpath.normpath(posixpath.join("css", found[1])), paths), text)


class StaticFilesMiddleware:
    """ASGI middleware that serves static files in the event loop.

    A page requests a dozen files at once. Each is a read of some kilobytes from the kernel's cache, and would otherwise
    wait for a thread, and twice for the interpreter lock, behind requests that compute.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self._files: dict[str, Any] = WhiteNoiseMiddleware().files

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Serve a static file; pass every other request on, and requests over HTTP where only TLS is allowed."""
        file = self._files.get(scope["path"])
        if file is None or (settings.SECURE_SSL_REDIRECT and not _by_tls(scope)):
            await self.application(scope, receive, send)
            return
        # Header names in WSGI's form.
        asked = {b"HTTP_" + name.upper().replace(b"-", b"_"): value for name, value in scope["headers"]}
        answer = file.get_response(
            scope["method"], {k.decode("latin-1"): v.decode("latin-1") for k, v in asked.items()}
        )
        body = b""
        if answer.file is not None:
            with answer.file:
                body = answer.file.read()
        headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in answer.headers]
        headers.append((b"x-content-type-options", b"nosniff"))
        if settings.SECURE_HSTS_SECONDS and _by_tls(scope):
            headers.append((b"strict-transport-security", b"max-age=%d" % settings.SECURE_HSTS_SECONDS))
        await send({"type": "http.response.start", "status": int(answer.status), "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _by_tls(scope: HTTPScope) -> bool:
    """Return True if the request used TLS, here or at the proxy in front, by Django's own rule."""
    return scope["scheme"] == "https" or dict(scope["headers"]).get(b"x-forwarded-proto") == b"https"
