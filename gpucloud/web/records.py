"""Read-only database records at `/admin/`, for operators.

Nothing can be changed there. Every change has a service that takes its locks, increments its version and writes the
audit log; a form over the bare row would bypass all three.
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

# Names of fields that are never shown: credentials, sealed or hashed ones too; a webhook address' path may be one,
# the ticket of a carry has one, and so may a job's variables.
UNREADABLE: Final = ("digest", "secret", "password", "sealed", "url", "carry", "environment")


class Records(admin.AdminSite):
    """The admin site, for operators only.

    It signs in and out through the pages' own views, with their limit of attempts.
    """

    site_title = site_header = index_title = _("Database browser")
    site_url = "/"
    index_template = "admin/records.html"
    empty_value_display = "–"

    def has_permission(self, request: HttpRequest) -> bool:
        """Return True if the reader is an operator."""
        return request.user.is_active and getattr(request.user, "is_operator", False)

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """Redirect to the sign-in page and back.

        Raises PermissionDenied for signed-in users who are not operators.
        """
        if request.user.is_authenticated and not self.has_permission(request):
            raise PermissionDenied
        return redirect_to_login(request.GET.get("next", request.path))

    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Answer 404: `sign-out` is the page for it."""
        raise Http404

    def password_change(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Answer 404: passwords are not set here."""
        raise Http404

    def password_change_done(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> NoReturn:
        """Answer 404: passwords are not set here."""
        raise Http404


class ReadOnly(Rows):
    """The rows of a model, with all fields except hidden ones."""

    actions = None
    list_per_page = 50
    # Skip a second count of the whole table beside the count of search results.
    show_full_result_count = False
    change_form_template = "admin/record.html"

    def has_module_permission(self, request: HttpRequest) -> bool:
        """Return True: the site checks who the reader is."""
        return True

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return True: the site checks who the reader is."""
        return True

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: nothing can be added."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: nothing can be changed."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Return False: nothing can be deleted."""
        return False

    def get_fields(self, request: HttpRequest, obj: Model | None = None) -> Any:
        """Return the row's own columns, in the model's order."""
        return [field.name for field in self.opts.fields if not any(word in field.name for word in UNREADABLE)]


records = Records()


def register(model: type[Model], *shown: str, find: tuple[str, ...] = (), narrow: tuple[str, ...] = ()) -> None:
    """Register the model, newest rows first: `shown` are its columns, `find` searched fields, `narrow` filters."""
    joined = [name for name in shown if model._meta.get_field(name).is_relation]  # noqa: SLF001  # Django's own name
    facts = {
        "list_display": shown,
        "search_fields": find,
        "list_filter": narrow,
        "list_select_related": joined or False,
        "ordering": ("-pk",),
    }
    records.register(model, type(f"{model.__name__}Records", (ReadOnly,), facts))
