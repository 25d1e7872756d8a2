"""Compiled queries: querysets that are translated to SQL once and executed often.

Django compiles a queryset anew for each execution, which costs several times what the database needs for a small
answer. A query that every request executes is written as a function and compiled once:

    @compiled_query
    def by_key(key: Any) -> QuerySet[Token]:
        return Token.objects.select_related("tenant").filter(key=key)

    by_key("5c0ffee")  # → [<Token>]

The function is called once, with an expression in the place of each value. Its queryset may use them wherever Django
takes an expression; its shape must not depend on them: neither whether there is a filter nor how many values it has.
None equals nothing, as in SQL. Each later call executes the compiled SQL with its values through Django's connection,
cursor and models, without its compiler. A test compares each compiled query with its queryset
(`tests/scheduling/test_statements.py`).
"""

import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Generic, TypeVar

from django.db import connection
from django.db.models import Model, QuerySet, Value
from django.db.models.query import ModelIterable, get_related_populators
from django.db.transaction import TransactionManagementError

T = TypeVar("T")
# Makes an object, or a tuple of values, from a row.
Reader = Callable[[Any], Any]


class Placeholder(Value):
    """A stand-in for a value, numbered by its place among the function's parameters."""

    def as_sql(self, compiler: Any, connection: Any) -> Any:
        """Pass this placeholder as the parameter: each call replaces it with a value."""
        return "%s", [self]


class CompiledQuery(Generic[T]):
    """A query that is compiled to SQL at its first call."""

    # All compiled queries of the program, for the test that compares them with their querysets.
    every: "ClassVar[list[CompiledQuery[Any]]]" = []

    def __init__(self, build: Callable[..., QuerySet[Any, T]]) -> None:
        self.build = build
        self._compiler: Any = None
        self.every.append(self)

    def __call__(self, *values: Any) -> list[T]:
        """Return the rows in the query's order.

        Raises TransactionManagementError if the query locks rows outside of a transaction.
        """
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
        return self._read_all(rows)

    def _read_all(self, rows: list[Any]) -> list[T]:
        return [self._read(row) for row in rows]

    def _compile(self) -> None:
        names = inspect.signature(self.build).parameters
        queryset: Any = self.build(*map(Placeholder, range(len(names))))
        compiler = queryset.query.get_compiler(connection=connection)
        self._sql, self._parameters = compiler.as_sql()
        self._locks = queryset.query.select_for_update
        columns = [column for column, _, _ in compiler.select]
        self._converters = compiler.get_converters(columns)
        of_models = queryset._iterable_class is ModelIterable  # noqa: SLF001 - nothing else distinguishes models from values_list
        self._read: Reader = self._model_reader(compiler) if of_models else tuple
        self._compiler = compiler

    def _model_reader(self, compiler: Any) -> Reader:
        return _model_reader(compiler)


def compiled_query(build: Callable[..., QuerySet[Any, T]]) -> CompiledQuery[T]:
    """Turn a function that builds a queryset into a compiled query."""
    return CompiledQuery(build)


def set_prefetched(row: Model, name: str, related: list[Any]) -> None:
    """Set the result of `row.name.all()` and the back reference of each object, as `prefetch_related` does."""
    manager = getattr(row, name)
    for item in related:
        setattr(item, manager.field.name, row)
    queryset = manager.model.objects.all()
    queryset._result_cache = related  # noqa: SLF001 - Django has no public API for it
    vars(row).setdefault("_prefetched_objects_cache", {})[name] = queryset


def _model_reader(compiler: Any) -> Reader:
    """Return a reader of rows as objects with their `select_related` objects, as Django's own iterator makes them."""
    model: type[Model] = compiler.klass_info["model"]
    fields = compiler.klass_info["select_fields"]
    columns = slice(fields[0], fields[-1] + 1)
    names = [column.target.attname for column, _, _ in compiler.select[columns]]
    populators: Any = get_related_populators  # the published types are for another version
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
