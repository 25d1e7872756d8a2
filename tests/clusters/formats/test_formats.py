"""Detection of a pod's format; a malformed pod makes a reader fail with a message only."""

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.clusters.admission.manifests import configurations
from apps.clusters.admission.policy import GUARDS
from apps.clusters.formats import FORMATS, format_of
from apps.clusters.formats.asks import Unreadable
from tests.clusters.formats.pods import container_with, pod

PODS = [
    (container_with(core=30, memory=4), "gpu-manager"),
    (container_with(gpu=1), "HAMi"),
    (container_with(aliyun=2), "gpushare"),
    ({}, None),
]


@pytest.mark.parametrize(("container", "name"), PODS)
def test_a_pod_is_known_by_its_resources(container: dict[str, Any], name: str | None) -> None:
    found = format_of(pod({}, container))
    assert (found and found.NAME) == name


def test_every_format_with_resources_has_a_pod_above() -> None:
    assert {format_.NAME for format_ in FORMATS if format_.RESOURCES} <= {name for _, name in PODS}, "PODS"


def test_the_webhooks_see_the_pods_of_every_format() -> None:
    webhook = configurations(ca_bundle=b"", url="https://127.0.0.1")[0]["webhooks"][0]
    [condition] = webhook["matchConditions"]
    quoted = tuple(re.findall(r"'([^']+)'", condition["expression"]))
    unseen = {name for format_ in FORMATS for name in format_.RESOURCES} - set(quoted)
    keys = [key for guard in GUARDS for key in (*guard.annotations, *guard.labels, *guard.asking)]
    unseen |= {key for key in keys if not key.startswith(quoted)}
    assert not unseen, "apps/clusters/admission/manifests.py, _asks_for_gpus"


def test_the_page_says_what_becomes_of_each_format() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md").read_text(encoding="utf-8")
    table = page[page.index("| written for |") :].partition("\n\n")[0]
    assert re.findall(r"^\| ([\w-]+) \|", table, re.MULTILINE)[1:] == [format_.NAME for format_ in FORMATS]


def test_a_sharepod_is_known_by_its_annotations() -> None:
    found = format_of(pod({}, annotations={"kubeshare/gpu_limit": "1.0"}))
    assert found is not None
    assert found.NAME == "KubeShare"


def test_a_pod_in_the_words_of_two_is_refused() -> None:
    with pytest.raises(Unreadable, match="gpu-manager and HAMi"):
        format_of(pod(container_with(core=30, memory=4), container_with(gpu=1)))


RESOURCES = [name for format_ in FORMATS for name in format_.RESOURCES]
TEXT = st.sampled_from(
    ["", "0", "1", "99", "150", "1.5", "1e400", "-3", "NaN", "1Gi", "0,1", "a,b,c,d:;", "٣", "9" * 5000]
)
KEYS = st.sampled_from(
    [
        "tencent.com/vcuda-core-limit",
        *(f"{prefix}0" if prefix.endswith("-") else prefix for guard in GUARDS for prefix in guard.annotations),
        *[
            f"{prefix}{word}"
            for prefix in ("kubeshare/", "sharedgpu/")
            for word in ("gpu_request", "gpu_limit", "gpu_mem")
        ],
    ]
)
AMOUNTS = st.none() | st.dictionaries(st.sampled_from(RESOURCES), TEXT, max_size=3)


@given(AMOUNTS, AMOUNTS, st.none() | st.dictionaries(KEYS, TEXT), st.none() | st.dictionaries(KEYS, TEXT))
def test_no_pod_makes_a_reader_fail_otherwise_than_in_words(
    limits: Any, requests: Any, notes: Any, labels: Any
) -> None:
    odd = pod({"resources": {"limits": limits, "requests": requests}}, annotations=notes, labels=labels)
    for format_ in FORMATS:
        for read in (format_.asks, format_.holds):
            with contextlib.suppress(Unreadable):
                read(odd)
