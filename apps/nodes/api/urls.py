"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.nodes.api import views

urlpatterns = [
    path("nodes/", views.NodeList.as_view()),
    path("nodes/enrol/", views.Enrol.as_view()),
    path("nodes/<slug:name>/", views.NodeDetail.as_view()),
    path("nodes/<slug:name>/enrolment/", views.NodeEnrolment.as_view()),
    path("gpus/", views.GpuList.as_view()),
    path("gpus/<slug:uuid>/processes/", views.GpuProcesses.as_view()),
]
