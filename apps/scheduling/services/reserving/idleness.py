"""How much of what a reservation holds its claims have used lately."""

from datetime import datetime, timedelta

from django.db.models import Count, Sum

from apps.nodes.models import Sample
from apps.scheduling.models import Assignment, AssignmentState, Reservation

# Samples come once a second. With fewer than half of them nothing is known, and nobody loses a reservation for that.
ENOUGH = 0.5


def used_percent(reservation: Reservation, *, now: datetime) -> float | None:
    """Percent of the reserved core that its claims used in the last `idle_seconds`; None where it is not known."""
    begin = now - timedelta(seconds=reservation.idle_seconds)
    if reservation.started_at is None or reservation.started_at > begin:
        return None
    claimed = Assignment.objects.filter(claim__reservation=reservation)
    live = claimed.exclude(state=AssignmentState.RELEASED)
    oldest = live.order_by("created_at").values_list("created_at", flat=True).first()
    samples = Sample.objects.filter(gpu=None, assignment_uid__in=claimed.values("uid"), at__gte=begin, at__lt=now)
    samples = samples.filter(node_id__in=claimed.values("gpu__node_id"))
    seen = samples.aggregate(count=Count("pk"), core=Sum("core_percent", default=0.0))
    if oldest is not None and seen["count"] < ENOUGH * (now - max(oldest, begin)).total_seconds():
        return None
    reserved = reservation.core_request * reservation.gpu_count * reservation.idle_seconds
    return 100.0 * float(seen["core"]) / reserved
