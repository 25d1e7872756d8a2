"""The form of a new notebook."""

import shlex
from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from apps.console.jobs.new_job import TEXT, JobForm, NewJob
from apps.console.shell.forms import number
from apps.jobs.models import IDLE_MINUTES, MOST_IDLE_MINUTES, Job, JobKind
from apps.jobs.services.creation import JobSpec, create_job
from apps.jobs.services.lifecycle import claim_of_job
from apps.jobs.services.notebooks import DEFAULT_COMMAND
from apps.jobs.services.source import Source


class NotebookForm(JobForm):
    """A new notebook: a job whose program is Jupyter."""

    command = forms.CharField(
        label=_("Jupyter"),
        max_length=10_000,
        initial=DEFAULT_COMMAND[0],
        help_text=_("The program on the node, by its path if it is elsewhere, and options of its server."),
        widget=forms.TextInput(attrs=TEXT),
    )
    idle_minutes = number(
        _("Ends when unused"),
        most=MOST_IDLE_MINUTES,
        initial=IDLE_MINUTES,
        required=False,
        help_text=_("Minutes without a busy kernel and without anybody connected. Empty: it does not end by itself."),
    )
    groups = ()  # type: ignore[assignment]  # an array has groups, a notebook has none

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("after", "array_size", "at_once", "retries"):
            del self.fields[name]
        self.fields["name"].initial = "notebook"
        self.fields["image"].help_text = _(
            "A container image that has Jupyter, with its registry. Empty: the node's own."
        )
        self.fields["git_url"].help_text = _(
            "Cloned into the working directory before Jupyter starts; without a password."
        )
        self.order_fields(["tenant", "name", "pool", "core_request", "memory_mib", "idle_minutes", "command"])


class NewNotebook(NewJob):
    """A new notebook."""

    title, form_class = _("New notebook"), NotebookForm
    subtitle = _("Jupyter on a share of a GPU, in the browser; the share can be resized while it runs")
    submit = _("Start notebook")

    def form(self, data: Any = None) -> NotebookForm:
        """Return the form with the tenant of the URL."""
        initial = {"tenant": self.request.GET.get("tenant"), **self._last_program()}
        return NotebookForm(data, principal=self.principal, initial=initial)

    def _last_program(self) -> dict[str, Any]:
        """Return the program and the image of the reader's last notebook: an installation seldom changes them."""
        mine = Job.objects.filter(user=self.principal.user_id, kind=JobKind.NOTEBOOK).visible_to(self.principal)
        last = mine.order_by("-pk").first() if self.principal.user_id else None
        return {"command": shlex.join(last.command), "image": last.image or ""} if last else {}

    def act(self, form: JobForm) -> Job:
        """Make the notebook."""
        values = dict(form.cleaned_data)
        minutes = values.pop("time_limit_minutes")
        common: dict[str, Any] = {"time_limit_seconds": None if minutes is None else 60 * minutes, "retries": 0}
        of_job: dict[str, Any] = {
            name: values.pop(name) for name in ("command", "environment", "image", "idle_minutes")
        }
        source = Source(files=values.pop("uploaded"), git_url=values.pop("git_url"), git_ref=values.pop("git_ref"))
        claim = claim_of_job(**values, **common, image=of_job["image"])
        spec = JobSpec(claim=claim, source=source, kind=JobKind.NOTEBOOK, **of_job, **common)
        return create_job(principal=self.principal, spec=spec)
