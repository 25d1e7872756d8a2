"""The fields of a claim are the same in REST, in the service, in the command, in the file and on the page."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import yaml

from apps.console.claims.claim_forms import ClaimForm, ResizeForm
from apps.console.claims.claim_list import COLUMNS
from apps.console.claims.sharing import SharingForm
from apps.scheduling.api.serializers import ClaimSerializer, ResizeSerializer
from apps.scheduling.services.claims.resize import UNCHARGED
from apps.scheduling.services.claims.spec import ClaimChanges, ClaimSpec
from gpucloud_cli.commands.claims import CREATED, RESIZED

ROOT = Path(__file__).resolve().parents[2]
# REST's names of fields whose names are words of Python.
IN_PYTHON = {"class": "best_effort"}
# Fields of a claim that the table of claims does not have as a file.
NOT_IN_A_FILE = {
    "assignments": "its GPUs are the column gpus",
    "conditions": "the columns idle_since, unreachable_since and below_guarantee_since",
    "estimated_start_at": "worked out for one claim at a time",
    "observed_generation": "moves while a node catches up; the API has it",
    "pack_profile": "what packing measured; the API and the page have it",
    "reachable": "the column unreachable_since is empty then",
}


def in_python(names: Any) -> set[str]:
    return {IN_PYTHON.get(name, name) for name in names}


def test_a_new_claims_fields_are_the_same_in_rest_in_the_service_and_in_the_command() -> None:
    settable = {name for name, field in ClaimSerializer().get_fields().items() if not field.read_only}
    spec = {field.name for field in dataclasses.fields(ClaimSpec)}
    # A pod is written by the clusters' services alone.
    assert in_python(settable) == spec - {"pod"}, "ClaimSerializer and ClaimSpec differ"
    assert {field.name for field in CREATED} == settable, "cli/gpucloud_cli/schema.json: `make openapi`"


def test_a_live_change_has_the_same_fields_in_rest_in_the_service_and_in_the_command() -> None:
    settable = set(ResizeSerializer().get_fields())
    assert in_python(settable) == {field.name for field in dataclasses.fields(ClaimChanges)}, "ClaimChanges"
    assert {field.name for field in RESIZED} == settable, "cli/gpucloud_cli/schema.json: `make openapi`"


def test_every_readable_field_of_a_claim_is_a_column_of_its_file() -> None:
    readable = set(ClaimSerializer().get_fields())
    forgotten = readable - set(COLUMNS) - NOT_IN_A_FILE.keys()
    assert not forgotten, "apps/console/claims/claim_list.py, COLUMNS; or give a reason in NOT_IN_A_FILE"


def test_every_readable_field_of_a_claim_is_on_its_page() -> None:
    readable = set(ClaimSerializer().get_fields())
    templates = "\n".join(file.read_text() for file in sorted((ROOT / "templates" / "claims").glob("*.html")))
    on_page = {name for name in in_python(readable) if re.search(rf"\bclaim\.{name}\b", templates)}
    forgotten = in_python(readable) - on_page - NOT_ON_ITS_PAGE.keys()
    assert not forgotten, "templates/claims/; or give a reason in NOT_ON_ITS_PAGE"


NOT_ON_ITS_PAGE = {
    "assignments": "the view gives them with what they use",
    "conditions": "each has a note of its own on the page",
    "estimated_start_at": "the view's `place` has the estimate and its reason",
    "observed_generation": "the view works it out of the assignments",
    "assigned_at": "a moment of the timeline",
    "released_at": "a moment of the timeline",
    "updated_at": "the timeline has every change of state",
    "reachable": "its state is Unknown while its node is lost",
    "version": "for programs: the ETag of the API",
}


def test_the_document_of_the_api_has_the_fields_of_a_claim() -> None:
    document = yaml.load((ROOT / "docs" / "openapi.yaml").read_text(), Loader=yaml.CSafeLoader)
    assert set(document["components"]["schemas"]["Claim"]["properties"]) == set(ClaimSerializer().get_fields())


NOT_ON_THE_FORM = {
    "group": "claims of one group are made by programs",
    "group_most": "as group",
    "group_size": "as group",
    "gpu_model": "the form offers the pool's models beside the pool",
    "lease_seconds": "a lease is for programs, which renew it",
    "rebalance": "a claim may be rebalanced until its page says otherwise",
    "reservation": "the reservation's page makes claims in it",
    "time_limit_seconds": "`time_limit_minutes`",
    "when_over_quota": "the checkbox `wait`",
}


def test_every_settable_field_of_a_claim_is_on_its_form() -> None:
    settable = in_python(name for name, field in ClaimSerializer().get_fields().items() if not field.read_only)
    forgotten = settable - set(ClaimForm.base_fields) - NOT_ON_THE_FORM.keys()
    assert not forgotten, "apps/console/claims/claim_forms.py, ClaimForm; or give a reason in NOT_ON_THE_FORM"
    assert NOT_ON_THE_FORM.keys() <= settable - set(ClaimForm.base_fields), "reasons without need"


def test_every_field_that_can_be_changed_live_is_on_a_form() -> None:
    forgotten = in_python(ResizeSerializer().get_fields()) - set(ResizeForm.base_fields) - set(SharingForm.base_fields)
    assert not forgotten, "apps/console/claims/: ResizeForm or SharingForm"


def test_every_field_that_can_be_changed_live_is_in_the_audit_log() -> None:
    """`resize.py` records the fields that are charged, and those of UNCHARGED."""
    recorded = {"core_request", "core_limit", "memory_mib", "memory_limit_mib", *UNCHARGED}
    forgotten = {field.name for field in dataclasses.fields(ClaimChanges)} - recorded
    assert not forgotten, "apps/scheduling/services/claims/resize.py, UNCHARGED; or `all_limits` in lifecycle.py"
