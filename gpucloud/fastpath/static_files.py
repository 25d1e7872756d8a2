"""The files of the pages: named by their content, so that a browser may keep each for good, and sent without Django."""

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
    """Files as `collectstatic` leaves them: the content's digest in the name, a gzipped one beside each."""

    # Modules name each other: they get the new names, too.
    support_js_module_import_aggregation = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # Source maps are not served: what names them stays as it is.
        known: Any = super().patterns
        self.patterns: Any = tuple(
            (suffix, tuple(one for one in patterns if "sourceMappingURL" not in str(one))) for suffix, patterns in known
        )
        super().__init__(*args, **kwargs)

    def post_process(self, paths: dict[str, Any], dry_run: bool = False, **options: Any) -> Iterator[Any]:
        """A sheet that imports others is served as one: a browser asks once, and paints when that one is there."""
        whole = InMemoryStorage()
        for name in [name for name in paths if name.startswith("css/")]:
            whole.save(name, ContentFile(_whole(name, paths)))
            paths[name] = whole, name
        yield from super().post_process(paths, dry_run, **options)


def _whole(name: str, paths: dict[str, Any]) -> str:
    """The sheet with what it imports in place."""
    storage, path = paths[name]
    with storage.open(path) as file:
        text: str = file.read().decode()
    return IMPORT.sub(lambda found: _whole(posixpath.normpath(posixpath.join("css", found[1])), paths), text)


class StaticDoor:
    """Wraps the HTTP application, and answers for files itself, in the event loop.

    A page asks for a dozen of them at once. Each is a read of some kilobytes that the kernel has in memory, and would
    otherwise wait for a thread, and for the interpreter's lock twice, behind requests that compute.
    """

    def __init__(self, application: ASGI3Application) -> None:
        self.application = application
        self._files: dict[str, Any] = WhiteNoiseMiddleware().files

    async def __call__(self, scope: HTTPScope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        """Pass everything through that is no file, or is asked for in the clear where only TLS is wanted."""
        file = self._files.get(scope["path"])
        if file is None or (settings.SECURE_SSL_REDIRECT and not _by_tls(scope)):
            await self.application(scope, receive, send)
            return
        # As WSGI names them.
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
    """As Django sees it: here, or at the proxy in front."""
    return scope["scheme"] == "https" or dict(scope["headers"]).get(b"x-forwarded-proto") == b"https"
