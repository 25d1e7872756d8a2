"""The records at `/admin/`: what the database holds, for operators to read.

Nothing is changed there. Whatever changes has a service that takes its locks, counts its version and writes the audit
log; a form over the bare row would pass all three by.
"""

from typing import TYPE_CHECKING, Any, Final, NoReturn

from django.contrib import admin
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.db.models import Model
from django.http import Http404, HttpRequest
from django.utils.translation import gettext_lazy as _

if TYPE_CHECKING:
    Rows = admin.ModelAdmin[Model]
else:  # generic for the type checker only
    Rows = admin.ModelAdmin

# What a field is called that nobody reads: what somebody could come in with, sealed and digested, too; the path of a
# webhook's address may be that.
UNREADABLE: Final = ("digest", "secret", "password", "sealed", "url")


class Records(admin.AdminSite):
    """Operators only. Its way in and its way out are the pages' own, with their limit of attempts."""

    site_title = site_header = index_title = _("Records")
    site_url = "/"
    index_template = "admin/records.html"
    empty_value_display = "–"

    def has_permission(self, request: HttpRequest) -> bool:
        """Whether the reader runs the platform."""
        return request.user.is_active and getattr(request.user, "is_operator", False)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """To the sign-in page and back. Raises PermissionDenied for those who are signed in and no operators."""
        if request.user.is_authenticated and not self.has_permission(request):
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next", request.path))

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Signing out is at `sign-out`."""
        raise Http404

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Passwords are not set here."""
        raise Http404

    def password_change_done(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Passwords are not set here."""
        raise Http404


class ReadOnly(Rows):
    """A model's rows, all fields but those that nobody reads."""

    actions = None
    list_per_page = 50
    # A second count of the whole table, beside that of what was searched for.
    show_full_result_count = False
    change_form_template = "admin/record.html"

    def has_module_permission(self, request: HttpRequest) -> bool:
        """The site has asked who it is."""
        return True

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """The site has asked who it is."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Nobody."""
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """The row's own columns, as the model lists them."""
        return [field.name for field in self.opts.fields if not any(word in field.name for word in UNREADABLE)]


records = Records()


def register(model: type[Model], *shown: str, find: tuple[str, ...] = (), narrow: tuple[str, ...] = ()) -> None:
    """List the model's rows, the newest first: `shown` are its columns, `find` what search reads, `narrow` filters."""
    joined = [name for name in shown if model._meta.get_field(name).is_relation]  # noqa: SLF001  # Django's own name
    facts = {
        "list_display": shown,
        "search_fields": find,
        "list_filter": narrow,
        "list_select_related": joined or False,
        "ordering": ("-pk",),
    }
    records.register(model, type(f"{model.__name__}Records", (ReadOnly,), facts))
