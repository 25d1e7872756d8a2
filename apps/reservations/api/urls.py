"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.reservations.api import reservations

urlpatterns = [
    path("pools/<slug:name>/calendar/", reservations.PoolCalendar.as_view()),
    path("reservations/", reservations.ReservationList.as_view()),
    path("reservations/<uuid:uid>/", reservations.ReservationDetail.as_view()),
    path("reservations/<uuid:uid>/release/", reservations.ReservationRelease.as_view()),
]
