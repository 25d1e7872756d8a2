"""Language of a response: the reader's for pages, English for programs."""

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation

# Programs compare messages; an Accept-Language that their library sends by default must not change them.
PROGRAMS: Final = ("/api/", "/agent/", "/metric", "/healthz", "/readyz")


class Languages(LocaleMiddleware):
    """Django's locale middleware (the cookie of the language switch, then the browser's preference), for pages only."""

    def process_request(self, request: HttpRequest) -> None:
        """Activate the language; a thread that served another reader before must not keep theirs."""
        if request.path.startswith(PROGRAMS):
            translation.activate(settings.LANGUAGE_CODE)
        else:
            super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Set Content-Language."""
        if request.path.startswith(PROGRAMS):
            return response
        return super().process_response(request, response)
