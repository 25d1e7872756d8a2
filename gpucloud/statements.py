"""Queries that are put into SQL once and asked often.

Django puts a query together anew each time, which costs several times what the database needs for a small answer. What
every request asks is written as a function and kept:

    @kept
    def by_key(key: Any) -> QuerySet[Token]:
        return Token.objects.select_related("tenant").filter(key=key)

    by_key("5c0ffee")  # → [<Token>]

The function is called once, with an expression in the place of each value; its query may use them wherever Django takes
an expression, and nothing else may depend on them: not whether there is a filter, nor how many values it has. None
equals nothing, as in SQL. Each call after that is the kept SQL with its values: Django's connection, cursor and models,
without its compiler. That it answers as its queryset would is tested of each (`tests/scheduling/test_statements.py`).
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet, Value
from django.db.models.query import ModelIterable, get_related_populators
from django.db.transaction import TransactionManagementError

T = TypeVar("T")
# What makes an object, or a tuple of values, of a row.
Reader = Callable[[Any], Any]


class Placeholder(Value):
    """Stands where a value will be, by its number among the function's parameters."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Itself instead of its value: the caller's comes in its place."""
        return "%s", [self]


class Kept(Generic[T]):
    """A query, put into SQL when it is first asked."""

    # Every one of the program, for the test that compares them with Django's answers.
    every: "ClassVar[list[Kept[Any]]]" = []

    def __init__(self, build: Callable[..., QuerySet[Any, T]]) -> None:
        self.build = build
        self._compiler: Any = None
        self.every.append(self)

    def __call__(self, *values: Any) -> list[T]:
        """The rows, in the query's order. Raises TransactionManagementError for locks outside of a transaction."""
        if self._compiler is None:
            self._compile()
        if self._locks and not connection.in_atomic_block:
            raise TransactionManagementError("select_for_update cannot be used outside of a transaction.")
        given = [values[item.value] if isinstance(item, Placeholder) else item for item in self._parameters]
        with connection.cursor() as cursor:
            cursor.execute(self._sql, given)
            rows = cursor.fetchall()
        if self._converters:
            rows = self._compiler.apply_converters(rows, self._converters)
        return [self._read(row) for row in rows]

    def _compile(self) -> None:
        names = inspect.signature(self.build).parameters
        queryset: Any = self.build(*map(Placeholder, range(len(names))))
        compiler = queryset.query.get_compiler(connection=connection)
        self._sql, self._parameters = compiler.as_sql()
        self._locks = queryset.query.select_for_update
        columns = [column for column, _, _ in compiler.select]
        self._converters = compiler.get_converters(columns)
        of_models = queryset._iterable_class is ModelIterable  # noqa: SLF001 - only it tells them from values_list
        self._read: Reader = _of_models(compiler) if of_models else tuple
        self._compiler = compiler


def kept(build: Callable[..., QuerySet[Any, T]]) -> Kept[T]:
    """Keep the function's query."""
    return Kept(build)


def prefetched(row: Model, name: str, related: list[Any]) -> None:
    """Let `row.name.all()` be these, and each of them know its row, as `prefetch_related` does."""
    manager = getattr(row, name)
    for item in related:
        setattr(item, manager.field.name, row)
    queryset = manager.model.objects.all()
    queryset._result_cache = related  # noqa: SLF001 - Django has no other way to say it
    vars(row).setdefault("_prefetched_objects_cache", {})[name] = queryset


def _of_models(compiler: Any) -> Reader:
    """Objects with those that `select_related` names, as Django's own iterator makes them."""
    model: type[Model] = compiler.klass_info["model"]
    fields = compiler.klass_info["select_fields"]
    columns = slice(fields[0], fields[-1] + 1)
    names = [column.target.attname for column, _, _ in compiler.select[columns]]
    populators: Any = get_related_populators  # the published types are of another version's
    related = populators(compiler.klass_info, compiler.select, connection.alias)
    annotations = compiler.annotation_col_map or {}

    def read(row: Any) -> Model:
        made = model.from_db(connection.alias, names, row[columns])
        for populator in related:
            populator.populate(row, made)
        for name, at in annotations.items():
            setattr(made, name, row[at])
        return made

    return read
