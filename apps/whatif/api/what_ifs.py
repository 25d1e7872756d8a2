"""The view of /pools/{name}/what-if/."""

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.quotas.api.views import CHANGES, ApiView
from apps.quotas.idempotency import idempotent
from apps.quotas.models import Pool
from apps.whatif.models import WhatIf, WhatIfState
from apps.whatif.services import DAYS, LEAST_DAYS, MOST_DAYS, order_what_if
from apps.whatif.values import KINDS, SHARINGS
from gpucloud.api import shown
from gpucloud.api.serializers import Strict

STATES = ["none", *WhatIfState.values]


class WaitsSerializer(Strict):
    """The waits of one tenant's claims; those that wait at the end count up to then."""

    tenant = shown.text()
    claims = shown.integer()
    mean_seconds = shown.number()
    p95_seconds = shown.number("The 95th percentile.")


class FiguresSerializer(Strict):
    """The figures of one kind of sharing. Percentages are of the capacity of all GPUs over the period."""

    kind = shown.choice(KINDS)
    gpus = shown.integer("GPUs that take claims under this kind.")
    claims = shown.integer("Accepted, waiting, left and unfit.")
    accepted = shown.integer("Claims that got their GPUs within the period.")
    waiting = shown.integer("Claims that still waited at its end.")
    left = shown.integer("Claims that were released before their turn.")
    unfit = serializers.DictField(
        child=serializers.IntegerField(), read_only=True, help_text="Claims that the kind cannot serve, by reason."
    )
    wait_mean_seconds = shown.number("Of all but unfit claims; those that wait count up to the end.")
    wait_p95_seconds = shown.number("The 95th percentile.")
    core_percent = shown.number("Core-hours that claims were given.")
    memory_percent = shown.number("Memory-hours that claims were given.")
    rounding_core_percent = shown.number("The part of `core_percent` that was not asked for: MIG profiles.")
    rounding_memory_percent = shown.number("The same of memory.")
    stranded_core_percent = shown.number("Core-hours that were free while claims waited.")
    stranded_memory_percent = shown.number("The same of memory.")
    mixed_core_percent = shown.number("Core-hours given on GPUs that several tenants shared at the time.")
    resizes = shown.integer("Live resizes of accepted claims.")
    resizes_refused = shown.integer("Those without room in place; all of them under MIG.")
    restarts = shown.integer("Those that need a new start of the program: raises above its first share, under MPS.")
    suspensions_refused = shown.integer("Suspensions that the kind cannot do.")
    # What-ifs of older versions have none.
    waits = WaitsSerializer(many=True, read_only=True, default=(), help_text="By tenant.")


class WhatIfSerializer(Strict):
    """The last what-if of a pool."""

    pool = shown.text()
    state = shown.choice(STATES, "`none`: none was ordered yet.")
    progress_percent = shown.integer()
    days = shown.integer(null=True)
    kinds = shown.texts()
    begin = shown.time(null=True)
    end = shown.time(null=True)
    claims = shown.integer("Claims that waited or held GPUs within the period.")
    left_out = shown.integer("Those that are not replayed: the oldest of more than 5,000.")
    results = FiguresSerializer(many=True, read_only=True)
    words = shown.text("Why it failed.")
    created_by = shown.text(null=True)
    ordered_at = shown.time(null=True)
    finished_at = shown.time(null=True)


FIELDS = tuple(map(str, WhatIfSerializer().fields))


class WhatIfOrderSerializer(Strict):
    """The period and the kinds of a what-if."""

    days = serializers.IntegerField(
        min_value=LEAST_DAYS, max_value=MOST_DAYS, default=DAYS, help_text=f"Days up to now; {DAYS} unless given."
    )
    kinds = serializers.ListField(
        child=serializers.ChoiceField(choices=KINDS),
        min_length=1,
        default=list(SHARINGS),
        help_text="Kinds of sharing to compare, or turns in the order of a fair share, with the pool's half-life; the "
        "four kinds of sharing unless given.",
    )


class PoolWhatIf(ApiView):
    """The last days of a pool's claims, replayed under other kinds of sharing."""

    serializer_class: Any = WhatIfSerializer
    serializer_classes = {"POST": WhatIfOrderSerializer}
    queryset = Pool.objects.all()
    lookup_key = "name"
    read_scope, write_scope = "nodes:read", "nodes:write"
    operator_methods = CHANGES | {"GET"}
    tagged = False

    @extend_schema(responses={200: WhatIfSerializer})
    def get(self, request: Request, name: str) -> Response:
        """Show the last what-if of a pool: its progress, then its figures (operators)."""
        pool = self.find(name)
        return Response(WhatIfSerializer(document(pool, WhatIf.objects.filter(pool=pool).first())).data)

    @extend_schema(request=WhatIfOrderSerializer, responses={202: WhatIfSerializer})
    @idempotent
    def post(self, request: Request, name: str) -> Response:
        """Replay a pool's last days under other kinds of sharing; the answer comes with GET (operators)."""
        pool = self.find(name)
        row = order_what_if(principal=self.principal, pool=pool, **self.parse_body(request))
        return Response(WhatIfSerializer(document(pool, row)).data, status=202)


def document(pool: Pool, row: WhatIf | None) -> dict[str, Any]:
    """Return the what-if as the API shows it; None: there is none."""
    if row is None:
        row = WhatIf(pool=pool, kinds=[])
        unsaid = dict.fromkeys(("days", "begin", "end", "created_by", "ordered_at", "finished_at"))
        return {name: getattr(row, name) for name in FIELDS} | unsaid | {"state": "none", "pool": pool.name}
    return {name: getattr(row, name) for name in FIELDS} | {"pool": pool.name}
