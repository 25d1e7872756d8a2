"""The measured use of a reservation by its claims."""

from datetime import datetime, timedelta

from django.db.models import Count, Sum

from apps.nodes.models import Sample
from apps.scheduling.models import Assignment, Reservation

# Samples come once a second. With fewer than half of them nothing is known, and no reservation is released for that.
ENOUGH = 0.5


def used_percent(reservation: Reservation, *, now: datetime) -> float | None:
    """Return the percentage of the reserved core that its claims used in the last `idle_seconds`; None if not known.

    It is known only if each share that is there was measured: a quiet share says nothing about a silent one.
    """
    begin = now - timedelta(seconds=reservation.idle_seconds)
    if reservation.lost_since is not None or reservation.started_at is None or reservation.started_at > begin:
        return None
    claimed = Assignment.objects.filter(claim__reservation=reservation)
    samples = Sample.objects.filter(gpu=None, assignment_uid__in=claimed.values("uid"), at__gte=begin, at__lt=now)
    samples = samples.filter(node_id__in=claimed.values("gpu__node_id"))
    each = samples.order_by().values_list("assignment_uid").annotate(Count("at"), Sum("core_percent"))
    count, core = {}, 0.0
    for uid, number, percents in each:
        count[uid] = number
        core += percents
    live = claimed.live()
    for uid, created_at in live.values_list("uid", "created_at"):
        if count.get(uid, 0) < ENOUGH * (now - max(created_at, begin)).total_seconds():
            return None
    reserved = reservation.core_request * reservation.gpu_count * reservation.idle_seconds
    return 100.0 * core / reserved
