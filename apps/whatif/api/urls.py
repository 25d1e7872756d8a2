"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.whatif.api import what_ifs

urlpatterns = [path("pools/<slug:name>/what-if/", what_ifs.PoolWhatIf.as_view())]
