"""Rows that many tests begin with: recorded once where the product's services create them, then inserted at once.

The services send 75 statements for the cast (tests/cast.py), which thousands of tests begin with: a third of the
suite's processor time. A recording sends two. Keys, times and secrets are new each time: nothing that a process keeps
by key or by credential can belong to an earlier test.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import ForeignKey, Model
from django.db.models.signals import post_save
from psycopg.sql import Literal


@contextmanager
def created() -> Iterator[list[Model]]:
    """Collect the rows that the block creates, in order. Those of `bulk_create` send no signal and are missing."""
    rows: list[Model] = []

    def collect(instance: Model, created: bool, **_: Any) -> None:
        if created:
            rows.append(instance)

    post_save.connect(collect)
    try:
        yield rows
    finally:
        post_save.disconnect(collect)


class Recording:
    """Some rows as they are now, each with a number; their keys must come from sequences."""

    def __init__(self, rows: Sequence[Model]) -> None:
        present = [type(row)._default_manager.get(pk=row.pk) for row in rows]
        self._keys = {(type(row), row.pk): f"{{keys[{at}]}}" for at, row in enumerate(present)}
        self._numbers: list[int] = []
        arrays, inserts = [], []
        for model in dict.fromkeys(type(row) for row in present):
            mine = [at for at, row in enumerate(present) if type(row) is model]
            self._numbers += mine
            sequence = f"pg_get_serial_sequence('{model._meta.db_table}', '{model._meta.pk.column}')"
            arrays.append(f"ARRAY(SELECT nextval({sequence}) FROM generate_series(1, {len(mine)}))")  # noqa: S608
            inserts.append(self._insert(model, [present[at] for at in mine]))
        self._next_keys = f"SELECT {', '.join(arrays)}"
        self._script = "; ".join(inserts)

    def _insert(self, model: type[Model], rows: Sequence[Model]) -> str:
        fields = [field for field in model._meta.concrete_fields if not field.generated]
        columns = ", ".join(f'"{field.column}"' for field in fields)
        values = ", ".join(f"({', '.join(self._value(row, field) for field in fields)})" for row in rows)
        return f'INSERT INTO "{model._meta.db_table}" ({columns}) VALUES {values}'  # noqa: S608

    def _value(self, row: Model, field: Any) -> str:
        """Return a literal, or the place of a key or of a time."""
        value = getattr(row, field.attname)
        if field.primary_key or isinstance(field, ForeignKey):
            target = type(row) if field.primary_key else field.related_model
            return "NULL" if value is None else self._keys[target, value]
        if isinstance(value, datetime):
            return "{now}"
        return literal(field.get_db_prep_save(value, connection)).replace("{", "{{").replace("}", "}}")

    def replay(self, now: datetime, change: Callable[[str], str]) -> list[int]:
        """Insert the rows with new keys, by a script that was changed last; return the keys by the rows' numbers."""
        with connection.cursor() as cursor:
            cursor.execute(self._next_keys)
            made = (key for array in cursor.fetchone() for key in array)
            numbered = dict(zip(self._numbers, made, strict=True))
            keys = [numbered[number] for number in range(len(numbered))]
            cursor.execute(change(self._script.format(keys=keys, now=literal(now))))
        return keys


def literal(value: object) -> str:
    return Literal(value).as_string(connection.connection)
