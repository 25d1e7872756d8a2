"""The access to every page: its session, its principal, and the pages for refusals."""

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec
from urllib.parse import urlsplit

from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.utils import timezone
from django.utils.cache import patch_vary_headers
from django.views.decorators.cache import never_cache
from django.views.decorators.gzip import gzip_page

from apps.quotas import principals
from apps.quotas.authentication import source_of
from apps.quotas.models import User
from apps.quotas.principals import Principal
from gpucloud.errors import Denied, Missing

P = ParamSpec("P")
# Parameter of the sign-in page: it says that a session has ended.
ENDED = "ended=1"
View = Callable[Concatenate[HttpRequest, P], HttpResponseBase]
PageView = Callable[Concatenate[HttpRequest, Principal, P], HttpResponseBase]


def page(view: PageView[P]) -> View[P]:
    """Require a session, pass its principal, turn the domain's refusals into Django's, and compress the answer."""

    # The length of a page reveals nothing secret: Django masks its tokens and pads what it compresses.
    @gzip_page
    @never_cache
    @wraps(view)
    def handler(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponseBase:
        if not isinstance(request.user, User):
            return _sign_in_first(request)
        principal = principals.of_user(request.user, source_ip=source_of(request))
        # For the templates, which offer only actions that are allowed.
        request.principal = principal  # type: ignore[attr-defined]
        # Also for the server's zone: a thread that served another reader before must not keep theirs.
        timezone.activate(request.user.time_zone or timezone.get_default_timezone())
        try:
            response = view(request, principal, *args, **kwargs)
        except Denied as refused:
            raise PermissionDenied(refused.detail) from refused
        except Missing as missing:
            raise Http404(missing.detail) from missing
        finally:
            timezone.deactivate()
        patch_vary_headers(response, ["HX-Request"])
        return response

    return handler


def wants_fragment(request: HttpRequest) -> bool:
    """Return whether a script asks for a fragment of the page."""
    return "HX-Request" in request.headers


def _sign_in_first(request: HttpRequest) -> HttpResponse:
    if wants_fragment(request):
        # A redirect would put the sign-in form into the page's middle: the whole page goes there, and comes back.
        try:
            back = urlsplit(request.headers.get("HX-Current-URL", "")).path
        except ValueError:
            back = ""
        login = redirect_to_login(back or "/")
        # A script asks only from a page that had a session.
        return HttpResponse(status=401, headers={"HX-Redirect": f"{login['Location']}&{ENDED}"})
    if request.headers.get("Accept", "").startswith("application/json"):
        # Likewise: the next numbers of a chart.
        login = redirect_to_login(_came_from(request))
        return HttpResponse(status=401, headers={"HX-Redirect": f"{login['Location']}&{ENDED}"})
    login = redirect_to_login(request.get_full_path() if request.method in {"GET", "HEAD"} else _came_from(request))
    if request.method == "POST" or settings.SESSION_COOKIE_NAME in request.COOKIES:
        login["Location"] += f"&{ENDED}"
    return login


def _came_from(request: HttpRequest) -> str:
    """Return the page with the form: the form's own address may have no page."""
    try:
        page = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return "/"
    return page.path if page.netloc == request.get_host() else "/"
