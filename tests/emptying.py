"""Removal of the rows that a test with several connections has committed: row by row, because there are few.

Django's own way truncates every table and creates its permissions anew: a quarter of a second of processor time after
each of hundreds of tests. Deleting takes milliseconds.
"""

from typing import Any

# The schema's own: migrations, and rows that Django derives from the models.
KEPT = ("django_migrations", "django_content_type", "auth_permission")
# Above this, truncating is cheaper, and leaves no dead rows for the next test.
LARGE_BYTES = 1 << 18

# As a replica a session skips foreign keys, whose order does not matter then, and the triggers that protect the audit
# log. Only a superuser may; others truncate.
EMPTY = f"""
DO $$
DECLARE
    one record;
    may_delete boolean := current_setting('is_superuser') = 'on';
BEGIN
    IF may_delete THEN
        SET LOCAL session_replication_role = replica;
    END IF;
    FOR one IN
        SELECT oid::regclass AS name, bytes FROM pg_class, LATERAL (
            SELECT pg_relation_size(oid) + coalesce(sum(pg_relation_size(inhrelid)), 0) AS bytes
            FROM pg_inherits WHERE inhparent = oid
        ) AS size
        WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
            AND bytes > 0 AND relname <> ALL (ARRAY{list(KEPT)})
    LOOP
        IF may_delete AND one.bytes < {LARGE_BYTES} THEN
            EXECUTE format('DELETE FROM %s', one.name);
        ELSE
            EXECUTE format('TRUNCATE %s CASCADE', one.name);
        END IF;
    END LOOP;
END $$
"""  # noqa: S608 - our own numbers and names


def empty(connection: Any) -> None:
    """Leave the schema and nothing else."""
    with connection.cursor() as cursor:
        cursor.execute(EMPTY)
