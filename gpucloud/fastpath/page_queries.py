"""Compiled queries of the rows of a page: by their keys, without the constructor of models.

A list is filtered in one small query for keys. Its rows, and what is shown beside them, are read by compiled queries,
which have the same text for any number of keys:

    @page_query
    def claims(keys: Any) -> QuerySet[Claim]:
        return Claim.objects.select_related("tenant").filter(pk__among=keys).order_by("-pk")

Django's constructor sets the attributes of a model one by one, 20 µs for a claim; here they are set together. A row
beside several rows of the page is one object: fifty claims of a tenant share it. So these rows are for reading.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import connection
from django.db.models import Field, JSONField, Lookup, Model, QuerySet
from django.db.models.base import ModelState
from django.db.models.signals import post_init, pre_init

from gpucloud.fastpath.compiled_queries import CompiledQuery, Reader

T = TypeVar("T", bound=Model)
# Makes an object of a row, or finds the one that the page has.
Make = Callable[[Any], Any]


@Field.register_lookup
class Among(Lookup):
    """`pk__among=keys`: one value, a list, whatever the number of keys."""

    lookup_name = "among"
    prepare_rhs = False

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Return `column = ANY(list)`."""
        left, left_values = self.process_lhs(compiler, connection)
        right, right_values = self.process_rhs(compiler, connection)
        return f"{left} = ANY({right})", [*left_values, *right_values]


# Most JSON columns of most rows are one of these; the decoder takes 3 µs for either.
EMPTY: dict[str, type[list[Any]] | type[dict[str, Any]]] = {"[]": list, "{}": dict}
OF_PAGE = "_of_page"


if TYPE_CHECKING:
    once_per_page = property
else:

    class once_per_page(property):  # noqa: N801 - used like `property`
        """A property that a row of a page, which is for reading, computes once (`remember`)."""

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, row: Any, owner: type | None = None) -> Any:
            if row is None:
                return self
            known = vars(row).get(OF_PAGE)
            if known is None:
                return super().__get__(row, owner)
            if self._name not in known:
                known[self._name] = super().__get__(row, owner)
            return known[self._name]


def remember(rows: Iterable[Model]) -> None:
    """Let these rows, which nobody changes, compute each `once_per_page` once."""
    for row in rows:
        vars(row)[OF_PAGE] = {}


class PageQuery(CompiledQuery[T]):
    """A compiled query whose rows are made without their constructor, and share what stands beside them."""

    def _compile(self) -> None:
        super()._compile()
        for at, (converters, expression) in self._converters.items():
            if isinstance(expression.output_field, JSONField):
                self._converters[at] = [_unless_empty(converters)], expression

    def _model_reader(self, compiler: Any) -> Reader:
        self._maker = _Maker(compiler.klass_info, compiler.select)
        return self._maker.reader()

    def _read_all(self, rows: list[Any]) -> list[T]:
        return [*map(self._maker.reader(), rows)]


def _unless_empty(converters: list[Any]) -> Callable[..., Any]:
    """Return a converter of JSON that makes empty lists and objects itself."""

    def convert(value: Any, expression: Any, connection: Any) -> Any:
        if value in EMPTY:
            return EMPTY[value]()
        for converter in converters:
            value = converter(value, expression, connection)
        return value

    return convert


def page_query(build: Callable[..., QuerySet[T, T]]) -> PageQuery[T]:
    """Turn a function that builds a queryset of models into a query for pages."""
    return PageQuery(build)


def others(relation: str, model: type[Model], *shown: str) -> list[str]:
    """Return the columns of a related model but those shown, for `defer`."""
    return [
        f"{relation}__{field.name}"
        for field in model._meta.concrete_fields  # noqa: SLF001 - Django's own documented way
        if field.name not in shown and not field.primary_key
    ]


def attach(rows: Iterable[Model], name: str, related: Iterable[Model]) -> None:
    """Set `row.name.all()` of each row, and the back reference of each related object, as `prefetch_related` does."""
    field: Any = None
    found: dict[Any, list[Model]] = {}
    by_key = {row.pk: row for row in rows}
    for row in by_key.values():
        field = field or type(row)._meta.get_field(name).field  # type: ignore[union-attr] # noqa: SLF001 - as above
        queryset: Any = field.model._default_manager.all()  # noqa: SLF001 - as above
        queryset._result_cache = found[row.pk] = []  # noqa: SLF001 - Django has no public API for it
        vars(row).setdefault("_prefetched_objects_cache", {})[name] = queryset
    for item in related:
        key = getattr(item, field.attname)
        field.set_cached_value(item, by_key[key])
        found[key].append(item)


class _Maker:
    """A maker of the objects of one model, and of those beside them, from rows."""

    def __init__(self, info: Any, select: Any) -> None:
        self.model: type[Model] = info["model"]
        _check(self.model)
        fields = info["select_fields"]
        self.begin, self.end = fields[0], fields[-1] + 1
        names = [column.target.attname for column, _, _ in select[self.begin : self.end]]
        self.names = names
        self.key_at = self.begin + names.index(self.model._meta.pk.attname)  # noqa: SLF001
        self.beside = [
            (_Maker(each, select), each["local_setter"], each["remote_setter"])
            for each in info.get("related_klass_infos", ())
        ]

    def reader(self) -> Make:
        """Return a reader for the rows of one page."""
        beside = [(maker.reader(), local, remote) for maker, local, remote in self.beside]
        known: dict[Any, Any] = {}
        model, names, begin, end, key_at = self.model, self.names, self.begin, self.end, self.key_at
        alias = connection.alias

        def read(row: Any) -> Any:
            key = row[key_at]
            if key is None or key in known:
                return known.get(key)
            made = known[key] = model.__new__(model)
            vars(made).update(zip(names, row[begin:end], strict=True))
            state = vars(made)["_state"] = ModelState()
            state.adding, state.db = False, alias
            for other, set_local, set_remote in beside:
                found = other(row)
                set_local(made, found)
                if found is not None:
                    set_remote(found, made)
            return made

        return read


def _check(model: type[Model]) -> None:
    """Refuse a model that does something of its own when it is made."""
    own = model.__init__ is not Model.__init__ or "from_db" in vars(model)
    heard = pre_init.has_listeners(model) or post_init.has_listeners(model)
    assert not own, model
    assert not heard, model
