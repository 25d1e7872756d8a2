"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.jobs.api import jobs

urlpatterns = [
    path("jobs/", jobs.JobList.as_view()),
    path("jobs/<uuid:uid>/", jobs.JobDetail.as_view()),
    path("jobs/<uuid:uid>/output/", jobs.JobOutputView.as_view()),
    path("jobs/<uuid:uid>/stop/", jobs.JobStop.as_view()),
]
