"""Notices of booked, moved and released reservations to their pool's scheduler (see 0009)."""

from django.db import migrations

INSERTED = """
CREATE TRIGGER notice_insert AFTER INSERT ON scheduling_reservation FOR EACH ROW
EXECUTE FUNCTION gpucloud_notice('pool', 'pool_id');
"""
# The charges of its claims change all the time, and its version then stays.
CHANGED = """
CREATE TRIGGER notice_update AFTER UPDATE ON scheduling_reservation FOR EACH ROW
WHEN (OLD.version <> NEW.version) EXECUTE FUNCTION gpucloud_notice('pool', 'pool_id');
"""


class Migration(migrations.Migration):
    dependencies = [("scheduling", "0014_labels")]

    operations = [
        migrations.RunSQL(INSERTED, "DROP TRIGGER notice_insert ON scheduling_reservation;"),
        migrations.RunSQL(CHANGED, "DROP TRIGGER notice_update ON scheduling_reservation;"),
    ]
