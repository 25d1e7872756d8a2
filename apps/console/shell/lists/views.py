"""The generic list page: filters, order, keyset pages, files, live fragments, actions on selected rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.functional import Promise, cached_property
from django.utils.translation import gettext
from django.views.generic import ListView

from apps.console.shell.export import as_file, facts_of, file_format
from apps.console.shell.fragment_cache import share_fragment
from apps.console.shell.lists import bulk
from apps.console.shell.lists.columns import Column, Head, SavedView
from apps.console.shell.lists.filters import ListFilter
from apps.console.shell.page_access import page, wants_fragment
from apps.quotas.principals import Principal
from gpucloud.web import keyset
from gpucloud.web.keyset import NEWEST, Key, ordered

if TYPE_CHECKING:
    Rows = ListView[Model]
else:  # generic for the type checker only
    Rows = ListView

# Parameters of every list, beside its filters.
KNOWN = {"sort", "before", "after", "format", "table"}
PRIMARY = Key("pk")


class ListPage(Rows):
    """A list of rows that the reader may see.

    A list names its model, its filters and its columns; its template extends `lists/list.html` and fills `cells`, the
    cells of one row, and `empty`, the text of an empty list.
    """

    title: "str | Promise" = ""
    subtitle: "str | Promise" = ""
    filters: type[ListFilter] = ListFilter
    columns: Sequence[Column] = ()
    # The order without `?sort=`: keys before the primary key, or the newest rows first.
    first: Sequence[Key] = NEWEST
    views: Sequence[SavedView] = ()
    # File name and columns of CSV and JSON.
    file: tuple[str, list[str]] = ("", [])
    operators_only = False
    # Refusal to those who administer no tenant; empty: everybody may open it.
    admins_only: "str | Promise" = ""
    refresh_seconds = 15
    # True if the fragment depends on the reader's roles alone, so that viewers share it.
    shared: ClassVar[bool] = False
    # The field by which actions name a row.
    pick_field = "uid"
    http_method_names = ["get", "head", "post"]

    @classmethod
    def as_view(cls, **kwargs: Any) -> Any:
        """Return the view behind the console's access check."""
        view = super().as_view(**kwargs)

        def handler(request: HttpRequest, principal: Principal) -> HttpResponseBase:
            return view(request)

        return page(share_fragment(handler) if cls.shared else handler)

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        """Bind the view to the request and its reader."""
        super().setup(request, *args, **kwargs)
        self.principal: Principal = request.principal  # type: ignore[attr-defined]

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Refuse readers whose list it is not."""
        if self.operators_only:
            self.principal.require_operator()
        if self.admins_only and not self.principal.may_administer:
            raise PermissionDenied(str(self.admins_only))
        return super().dispatch(request, *args, **kwargs)

    @property
    def manager(self) -> Any:
        """The rows of the model."""
        model: Any = self.model
        return model.objects

    # What a list may replace.

    def get_queryset(self) -> Any:
        """Return the rows that the reader may see, without what only shown rows need."""
        rows: Any = self.manager.all()
        return rows.visible_to(self.principal) if hasattr(rows, "visible_to") else rows

    def with_details(self, rows: Any) -> Any:
        """Return the rows with what the page shows of them: joins, counts, sums."""
        return rows

    def present(self, rows: list[Any]) -> list[Any]:
        """Return the rows of the page as its template reads them."""
        return rows

    def facts(self, row: Any) -> Mapping[str, Any]:
        """Return the row of a file."""
        return facts_of(row, self.file[1])

    def actions(self) -> list[bulk.Action]:
        """Return the actions that the reader may take on selected rows."""
        return []

    def pick_of(self, row: Any) -> tuple[str, str]:
        """Return the key by which actions name the row, and its name for a reader."""
        return str(getattr(row, self.pick_field)), str(row)

    def more_context(self) -> dict[str, Any]:
        """Return what the template shows beside the list."""
        return {}

    # The list.

    @cached_property
    def filterset(self) -> ListFilter:
        """Return the filters, with the values of the URL."""
        return self.filters(self.request.GET, queryset=self.get_queryset(), request=self.request)

    @cached_property
    def order(self) -> tuple[str, tuple[Key, ...]]:
        """Return the name of the order and its keys; the list's own order if the URL names no other."""
        sort = self.request.GET.get("sort", "")
        name, down = sort.removeprefix("-"), sort.startswith("-")
        keys = next((one.keys for one in self.columns if one.key and one.key == name), None)
        if keys is None:
            own = tuple(self.first)
            return "", own if own and own[-1].expression == "pk" else (*own, PRIMARY)
        keys = tuple(key.reversed() for key in keys) if down else keys
        return sort, (*keys, Key("pk", descending=down)) if keys[-1].expression != "pk" else keys

    @cached_property
    def wrong(self) -> list[str]:
        """Errors of the URL, in words."""
        said, query = list(self.filterset.wrong), self.request.GET
        if query.get("sort") and not self.order[0]:
            said.append(gettext("Unknown order: {0}").format(query["sort"][:50]))
        unknown = [name[:50] for name in query if name not in KNOWN and name not in self.filterset.filters]
        return said + [gettext("Unknown filter: {0}").format(name) for name in unknown]

    def get(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Return the page, its live fragment, or the rows as a file."""
        rows, (_sort, keys) = self.filterset.qs, self.order
        # A file has no place for the errors, so it would look complete.
        if (form := file_format(request)) and not self.wrong:
            name, columns = self.file
            found = ordered(self.with_details(rows), keys).iterator(chunk_size=1000)
            return as_file(form, name, columns, map(self.facts, found))
        status = HTTPStatus.UNPROCESSABLE_ENTITY if form else HTTPStatus.OK
        return render(request, self.template_name or "", self._context(rows), status=status)

    def _context(self, rows: Any) -> dict[str, Any]:
        sort, keys = self.order
        # Only the keys first: what is shown of a row may cost more than to find it.
        bare = rows.select_related(None).prefetch_related(None).only("pk")
        part = keyset.keyset_page(bare, self.request.GET, keys, sort=sort)
        shown = self.present(self._details([row.pk for row in part.rows]))
        acts = self.actions()
        return {
            "list": self,
            "shell": "lists/fragment.html" if wants_fragment(self.request) else "base.html",
            "fragment": wants_fragment(self.request),
            "filter": self.filterset,
            "wrong": self.wrong,
            "part": part,
            "rows": shown,
            "actions": acts,
            "filtered": self.filterset.narrows,
            **self.more_context(),
        }

    def _details(self, keys: list[int]) -> list[Any]:
        rows = {row.pk: row for row in self.with_details(self.manager.filter(pk__in=keys))}
        return [rows[key] for key in keys if key in rows]

    @property
    def heads(self) -> list[Head]:
        """The heads of the columns, with the order that a click brings."""
        current = self.order[0]
        return [_head(one, current) for one in self.columns]

    @property
    def saved_views(self) -> list[SavedView]:
        """The saved views, the one that the URL shows marked."""
        return [view.shown_at(self.request.GET) for view in self.views]

    # Actions on selected rows.

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Preview an action on the selected rows; carry it out if confirmed."""
        offered = self.actions()
        if not offered:
            return self.http_method_not_allowed(request)
        action = next((one for one in offered if one.key == request.POST.get("act")), None)
        picks = list(dict.fromkeys(map(bulk.Pick.parse, request.POST.getlist("pick"))))
        if (said := _refusal(action, picks)) or action is None:
            messages.error(request, said)
            return redirect(request.get_full_path())
        found = self._found(picks)
        confirmed = "confirmed" in request.POST
        act: Callable[..., list[bulk.Outcome]] = bulk.carry_out if confirmed else bulk.preview
        outcomes = act(action, picks, found)
        done = sum(not one.refused for one in outcomes)
        shown = {"list": self, "action": action, "outcomes": outcomes, "confirmed": confirmed, "done": done}
        shown |= {"refused": len(outcomes) - done, "back": request.get_full_path()}
        return render(request, "lists/bulk.html", shown, status=200 if done or not confirmed else 409)

    def _found(self, picks: Iterable[bulk.Pick]) -> dict[str, Any]:
        """Return the visible rows by their pick."""
        field = self.manager.model._meta.get_field(self.pick_field)  # noqa: SLF001  # Django's own name
        keys = []
        for pick in picks:
            try:
                keys.append(field.to_python(pick.key))
            except ValidationError:
                continue
        rows: QuerySet[Any] = self.get_queryset().filter(**{f"{self.pick_field}__in": keys})
        return {str(getattr(row, self.pick_field)): row for row in rows}


def _refusal(action: bulk.Action | None, picks: list[bulk.Pick]) -> str:
    if action is None:
        return gettext("Choose an action.")
    if not picks:
        return gettext("Select rows first.")
    if len(picks) > bulk.MOST_PICKED:
        return gettext("Select at most {0} rows at a time.").format(bulk.MOST_PICKED)
    return ""


def _head(one: Column, current: str) -> Head:
    if not one.key:
        return Head(one, "", "")
    if current == one.key:
        return Head(one, f"-{one.key}", "ascending")
    return Head(one, one.key, "descending" if current == f"-{one.key}" else "")
