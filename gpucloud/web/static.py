"""The files of the pages: named by their content, so that a browser may keep each for good, and sent without Django."""

from typing import Any

from asgiref.typing import ASGI3Application, ASGIReceiveCallable, ASGISendCallable, HTTPScope
from django.conf import settings
from whitenoise.middleware import WhiteNoiseMiddleware
from whitenoise.storage import CompressedManifestStaticFilesStorage


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
        await send({"type": "http.response.start", "status": int(answer.status), "headers": headers, "trailers": False})
        await send({"type": "http.response.body", "body": body, "more_body": False})


def _by_tls(scope: HTTPScope) -> bool:
    """As Django sees it: here, or at the proxy in front."""
    return scope["scheme"] == "https" or dict(scope["headers"]).get(b"x-forwarded-proto") == b"https"
