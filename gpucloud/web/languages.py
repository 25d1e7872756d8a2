"""Which language an answer is in: the reader's for pages, English for programs."""

from typing import Final

from django.conf import settings
from django.http import HttpRequest, HttpResponseBase
from django.middleware.locale import LocaleMiddleware
from django.utils import translation

# Programs compare words; a header that their library sends by itself must not change them.
PROGRAMS: Final = ("/api/", "/agent/", "/metric", "/healthz", "/readyz")


class Languages(LocaleMiddleware):
    """Django's own choice (the switch's cookie, then what the browser asks for), where a person reads."""

    def process_request(self, request: HttpRequest) -> None:
        """Speak it from here on; a thread that served somebody else before must not go on in theirs."""
        if request.path.startswith(PROGRAMS):
            translation.activate(settings.LANGUAGE_CODE)
        else:
            super().process_request(request)

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Say which it was."""
        if request.path.startswith(PROGRAMS):
            return response
        return super().process_response(request, response)
