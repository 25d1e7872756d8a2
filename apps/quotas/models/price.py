"""The price book: prices of a whole GPU's hour, by model and first day."""

from django.db import models
from django.db.models import Q

from apps.quotas.models.pool import Pool
from apps.quotas.models.row import Row, checks

# Money is decimal, to millionths of the installation's currency; never a float.
PRICE_PLACES = 6


class Price(Row):
    """Price of a GPU-hour of one model from a day (UTC) on, until the next row. A pool's own price takes precedence.

    A share costs its part: 30 percent of a GPU for an hour is 0.3 GPU-hours.
    """

    audited = ("price", "pk")
    gpu_model = models.CharField(max_length=200)
    pool = models.ForeignKey(Pool, on_delete=models.PROTECT, related_name="prices", null=True)
    valid_from = models.DateField()
    per_gpu_hour = models.DecimalField(max_digits=12, decimal_places=PRICE_PLACES)

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(
                fields=["gpu_model", "pool", "valid_from"], name="price_once_a_day", nulls_distinct=False
            ),
            *checks(price_not_negative=Q(per_gpu_hour__gte=0)),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_model} in {self.pool or 'all pools'} from {self.valid_from}"
