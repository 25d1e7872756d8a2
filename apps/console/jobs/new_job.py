"""The form of a new job."""

import shlex
import uuid
from typing import Any

from django import forms
from django.conf import settings
from django.http import HttpResponse
from django.shortcuts import redirect
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from rest_framework.exceptions import ValidationError

from agent import wire
from apps.console.shell.form_page import FormPage
from apps.console.shell.forms import Group, TenantForm, flatten, memory, number
from apps.jobs.api.serializers import JobSerializer
from apps.jobs.models import MOST_OF_ARRAY, MOST_RETRIES, Job
from apps.jobs.services.creation import JobSpec, create_job
from apps.jobs.services.lifecycle import claim_of_job
from apps.jobs.services.source import Source
from apps.quotas.models.limits import MOST, ClaimField

TEXT = {"class": "form-control", "autocomplete": "off", "spellcheck": "false"}


class JobForm(TenantForm):
    """A new job."""

    command = forms.CharField(
        label=_("Command"),
        max_length=10_000,
        help_text=_("The program and its arguments, quoted as in a shell; no shell runs it. For a script: sh -c '…'."),
        widget=forms.Textarea(attrs={**TEXT, "rows": 2, "placeholder": "python train.py --epochs 3"}),
    )
    environment = forms.CharField(
        label=_("Variables"),
        required=False,
        max_length=20_000,
        help_text=_("NAME=VALUE, one in each line. Only their names are shown later."),
        widget=forms.Textarea(attrs={**TEXT, "rows": 2, "placeholder": "EPOCHS=3"}),
    )
    image = forms.CharField(
        label=_("Image"),
        required=False,
        max_length=wire.MAX_IMAGE,
        help_text=_("A container image with its registry. Empty: the command runs on the node as it is."),
        widget=forms.TextInput(attrs={**TEXT, "placeholder": "registry.example.com/team/train:2"}),
    )
    core_request = number(_("Core"), most=100, help_text=_("Percent of a GPU, guaranteed."), initial=25)
    memory_mib = memory(initial=4096)
    time_limit_minutes = number(
        _("Time limit"),
        most=MOST[ClaimField.TIME_LIMIT_SECONDS] // 60 // (MOST_RETRIES + 1) - 1,
        required=False,
        help_text=_("Minutes after which a run is ended. With one it may start before claims that wait for more room."),
    )
    retries = number(
        _("Retries"), least=0, most=MOST_RETRIES, initial=0, help_text=_("How often it runs again after a failure.")
    )

    git_url = forms.CharField(
        label=_("Git URL"),
        required=False,
        help_text=_("Cloned into the working directory before the command; https:// without a password."),
        widget=forms.TextInput(attrs={**TEXT, "placeholder": "https://git.example.org/vision/train.git"}),
    )
    git_ref = forms.CharField(
        label=_("Git reference"),
        required=False,
        help_text=_("A branch, a tag or a commit; the default branch unless given."),
        widget=forms.TextInput(attrs={**TEXT, "placeholder": "main"}),
    )
    uploaded = forms.UUIDField(required=False, widget=forms.HiddenInput)
    after = forms.CharField(
        label=_("Starts after"),
        required=False,
        max_length=1000,
        help_text=_("UIDs of jobs or arrays that must succeed first, separated by spaces."),
        widget=forms.TextInput(attrs=TEXT),
    )
    array_size = number(
        _("Array"),
        most=MOST_OF_ARRAY,
        required=False,
        help_text=_("Make so many jobs; each has its index, from 0, in GPUCLOUD_ARRAY_INDEX."),
    )
    at_once = number(
        _("At once"),
        most=MOST_OF_ARRAY,
        required=False,
        help_text=_("How many jobs of the array have claims at a time."),
    )
    groups = (Group(_("Array and order"), ("after", "array_size", "at_once"), folded=True),)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["pool"].queryset = self.fields["pool"].queryset.filter(jobs=True)  # type: ignore[attr-defined]
        self.fields["name"].initial = "job"
        self.order_fields(["tenant", "name", "pool", "command", "git_url", "git_ref"])

    def clean_command(self) -> list[str]:
        """Split the command as a shell would."""
        try:
            words = shlex.split(self.cleaned_data["command"])
        except ValueError as error:
            raise forms.ValidationError(_("A quotation mark is missing.")) from error
        checked: list[str] = self._as_api("command", words)
        return checked

    def clean_image(self) -> str | None:
        """Return the image."""
        checked: str | None = self._as_api("image", self.cleaned_data["image"].strip() or None)
        return checked

    def clean_git_url(self) -> str | None:
        """Return the URL."""
        found: str | None = self._as_api("git_url", self.cleaned_data["git_url"] or None)
        return found

    def clean_git_ref(self) -> str | None:
        """Return the reference."""
        found: str | None = self._as_api("git_ref", self.cleaned_data["git_ref"] or None)
        return found

    def clean_after(self) -> list[uuid.UUID]:
        """Return the uids."""
        found: list[uuid.UUID] = self._as_api("after", self.cleaned_data["after"].replace(",", " ").split())
        return found

    def clean(self) -> dict[str, Any]:
        """Refuse a bound of an array where there is none."""
        values: dict[str, Any] = super().clean() or self.cleaned_data
        if values.get("at_once") is not None and values.get("array_size") is None:
            self.add_error("at_once", gettext("This is for arrays: say how many jobs it has."))
        if "uploaded" in self.errors:
            # It has no place of its own.
            self.add_error(None, self.errors["uploaded"])
        if values.get("image") and (values.get("git_url") or values.get("uploaded")):
            self.add_error(
                "git_url" if values.get("git_url") else "image", gettext("A container brings its own files.")
            )
        elif values.get("uploaded") and values.get("git_url"):
            self.add_error("git_url", gettext("Give files or a git URL, not both."))
        if values.get("git_ref") and not values.get("git_url") and "git_url" not in self.errors:
            self.add_error("git_ref", gettext("This is for a clone: give a git URL, too."))
        return values

    def clean_environment(self) -> dict[str, str]:
        """Return the variables by name."""
        lines = [line.partition("=") for line in self.cleaned_data["environment"].splitlines() if line.strip()]
        if not all(equals for _, equals, _ in lines):
            raise forms.ValidationError(gettext("Write NAME=VALUE, one in each line."))
        named: dict[str, str] = self._as_api("environment", {name.strip(): value for name, _, value in lines})
        return named

    def _as_api(self, name: str, value: Any) -> Any:
        """Return the value as the API's own field takes it."""
        serializer = JobSerializer()
        try:
            taken = serializer.fields[name].run_validation(value)
            check = getattr(serializer, f"validate_{name}", None)
            return taken if check is None else check(taken)
        except ValidationError as error:
            raise forms.ValidationError(list(flatten(error.detail))) from error


class NewJob(FormPage):
    """A new job."""

    title, form_class = _("New job"), JobForm
    subtitle = _("Runs on a node of the pool as soon as its share is free; its claim ends with it")
    submit = _("Run job")
    parent = ("jobs", _("Jobs"))
    template_name = "jobs/new.html"

    def form(self, data: Any = None) -> JobForm:
        """Return the form with the tenant of the URL."""
        return JobForm(data, principal=self.principal, initial={"tenant": self.request.GET.get("tenant")})

    def act(self, form: JobForm) -> Job:
        """Make the job."""
        values = dict(form.cleaned_data)
        minutes = values.pop("time_limit_minutes")
        common = {
            "time_limit_seconds": None if minutes is None else 60 * minutes,
            "retries": values.pop("retries"),
        }
        of_job = {
            name: values.pop(name) for name in ("command", "environment", "image", "after", "array_size", "at_once")
        }
        source = Source(files=values.pop("uploaded"), git_url=values.pop("git_url"), git_ref=values.pop("git_ref"))
        spec = JobSpec(claim=claim_of_job(**values, **common, image=of_job["image"]), source=source, **of_job, **common)
        return create_job(principal=self.principal, spec=spec)

    def more_context(self) -> dict[str, Any]:
        """Return the bound of an upload."""
        return {"most_mib": settings.JOB_FILES_MIB}

    def finish(self, form: JobForm, done: Job) -> HttpResponse:
        """Lead to the job."""
        self.say(gettext("{0} is created.").format(done.array or done))
        if done.array is not None:
            return redirect("job-array", uid=done.array.uid)
        return redirect("job", uid=done.uid)
