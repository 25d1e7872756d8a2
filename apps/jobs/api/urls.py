"""Routes of this app below /api/v1/."""

from django.urls import path

from apps.jobs.api import arrays, files, jobs

urlpatterns = [
    path("job-arrays/", arrays.ArrayList.as_view()),
    path("job-arrays/<uuid:uid>/", arrays.ArrayDetail.as_view()),
    path("job-arrays/<uuid:uid>/stop/", arrays.ArrayStop.as_view()),
    path("job-files/", files.FilesList.as_view()),
    path("job-files/<uuid:uid>/", files.FilesDetail.as_view()),
    path("job-files/<uuid:uid>/pieces/", files.FilesPieces.as_view()),
    path("jobs/", jobs.JobList.as_view()),
    path("jobs/<uuid:uid>/", jobs.JobDetail.as_view()),
    path("jobs/<uuid:uid>/output/", jobs.JobOutputView.as_view()),
    path("jobs/<uuid:uid>/stop/", jobs.JobStop.as_view()),
]
