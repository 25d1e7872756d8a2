"""The generic form page, for a new object or a change: errors at fields, preview, conflict note, redirect."""

from collections.abc import Collection, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.functional import Promise
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from django.views.generic import View

from apps.console.shell.forms import ServiceForm
from apps.console.shell.page_access import page
from apps.quotas.models import AuditEvent
from apps.quotas.principals import Principal
from gpucloud.errors import Denied, GpucloudError, PreconditionFailed

if TYPE_CHECKING:
    from django_stubs_ext import StrPromise

# Address and text of a link.
Link = tuple[str, "StrPromise | str"]


class FormPage(View):
    """A page with one form that calls a service.

    A page names its form and its texts, and defines `act`, the call of the service, and `finish`, the redirect. A page
    that changes an object defines `find`, too, and the words of a conflict in `describe`; one with `preview_template`
    defines `preview`. Its template is `forms/form.html`, or extends it.
    """

    template_name = "forms/form.html"
    preview_template = ""
    form_class: type[Any] = ServiceForm
    title: "str | Promise" = ""
    subtitle: "str | Promise" = ""
    submit: "str | Promise" = _("Apply")
    # Route and title of the list to which *Cancel* leads.
    parent: tuple[str, "str | Promise"] = ("overview", _("Overview"))
    operators_only = False
    # Refusal to those who administer no tenant; empty: `authorize` decides.
    admins_only: "str | Promise" = ""
    # The audited type of the object, and the actions that change what the form shows; none: all.
    object_type = ""
    actions: Sequence[str] = ()
    http_method_names = ["get", "head", "post"]

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Any:
        """Return the view behind the console's access check."""
        view = super().as_view(**initkwargs)

        def handler(request: HttpRequest, principal: Principal, **kwargs: Any) -> HttpResponseBase:
            return view(request, **kwargs)

        return page(handler)

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Bind the view to the request and its reader."""
        super().setup(request, *args, **kwargs)
        self.principal: Principal = request.principal  # type: ignore[attr-defined]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Find the object and refuse readers whose page it is not."""
        if self.operators_only:
            self.principal.require_operator()
        if self.admins_only and not self.principal.may_administer:
            raise PermissionDenied(str(self.admins_only))
        self.row = self.find()
        self.authorize()
        return super().dispatch(request, *args, **kwargs)

    # What a page may replace.

    def find(self) -> Any:
        """Return the object of the URL. Raises Http404."""
        return None

    def authorize(self) -> None:
        """Refuse readers who may not see the form. Raises Denied."""

    def form(self, data: Any = None) -> Any:
        """Return the form, with the posted values."""
        return self.form_class(data)

    def act(self, form: Any) -> Any:
        """Call the service. Raises GpucloudError."""
        raise NotImplementedError

    def preview(self, form: Any) -> dict[str, Any]:
        """Return the context of the preview: `preview`, the effect of the change. Raises GpucloudError."""
        raise NotImplementedError

    def finish(self, form: Any, done: Any) -> HttpResponse:
        """Redirect after the change, with a message."""
        return redirect(self.cancel)

    def describe(self) -> str:
        """Return the present values in words, for a reader whose change came second."""
        return ""

    def changes(self) -> QuerySet[AuditEvent]:
        """Return the audited changes of what the form shows."""
        events = AuditEvent.objects.filter(object_type=self.object_type, object_id=str(self.audited_key))
        return events.filter(action__in=self.actions) if self.actions else events

    def version(self) -> str:
        """Return the present version of what the form shows, as the form posts it."""
        return str(self.row.version)

    def require_version(self, form: Any) -> None:
        """Refuse a form that shows other values than the present ones. Raises PreconditionFailed."""
        if form.cleaned_data["version"] != self.version():
            raise PreconditionFailed("Somebody changed it.", current=None)

    def refused(self, form: Any, error: GpucloudError) -> dict[str, Any]:
        """Return the context of a refusal, which the form shows."""
        return {}

    def more_context(self) -> dict[str, Any]:
        """Return the context of the page beside the form."""
        return {}

    @property
    def heading(self) -> "str | Promise":
        """The title of the page."""
        return self.title

    @property
    def crumbs(self) -> Sequence[Link]:
        """The pages above this one; the last is also where *Cancel* leads."""
        return [(reverse(self.parent[0]), str(self.parent[1]))]

    @property
    def cancel(self) -> str:
        """The address to which *Cancel* leads."""
        return self.crumbs[-1][0]

    @property
    def has_form(self) -> bool:
        """False if the reader may only read the page."""
        return True

    @property
    def wants_preview(self) -> bool:
        """True if the post only asks for the effect."""
        return bool(self.preview_template) and self.request.POST.get("act") == "preview"

    # The page.

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Show the form."""
        return self.show(self.form())

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Call the service, or preview it; a refusal is shown in the form, and then nothing was changed."""
        form = self.form(request.POST)
        if not form.is_valid():
            return self.show(form)
        try:
            if self.wants_preview:
                return self.show(form, **self.preview(form))
            return self.finish(form, self.act(form))
        except PreconditionFailed as error:
            return self.resolve_conflict(form, error)
        except Denied:
            raise
        except GpucloudError as error:
            form.refuse(error)
            return self.show(form, **self.refused(form, error))

    def show(self, form: Any, /, **more: Any) -> HttpResponse:
        """Render the page: 422 with a wrong form."""
        wrong = form.is_bound and not form.is_valid()
        status = HTTPStatus.UNPROCESSABLE_ENTITY if wrong else HTTPStatus.OK
        shown = {"page": self, "form": form, **self.more_context(), **more}
        return render(self.request, self.template_name, shown, status=status)

    def resolve_conflict(self, form: Any, error: GpucloudError) -> HttpResponse:
        """Show the conflicting change. The form keeps its values; sent again, it applies to the new version."""
        self.row = self.find()
        form.data = form.data.copy()
        form.data["version"] = self.version()
        return self.show(form, conflict=self.changes().order_by("-pk").first(), said=self.describe())

    @property
    def audited_key(self) -> Any:
        """The key by which the audit log names the object."""
        return getattr(self.row, "uid", self.row.pk)

    def say(self, words: str) -> None:
        """Show a message on the next page."""
        messages.success(self.request, words)

    def say_changed(self, form: Any, names: Collection[str]) -> None:
        """Tell which fields were changed."""
        labels = ", ".join(str(form.fields[name].label).lower() for name in names)
        said = gettext("{0} is changed: {1}.") if names else gettext("Nothing has changed.")
        self.say(said.format(self.row, labels))


class OperatorFormPage(FormPage):
    """A page for its readers, with a form for operators."""

    def authorize(self) -> None:
        """Refuse changes of readers who may not make them."""
        if self.request.method == "POST":
            self.principal.require_operator()

    @property
    def has_form(self) -> bool:
        """True for operators."""
        return self.principal.is_operator
