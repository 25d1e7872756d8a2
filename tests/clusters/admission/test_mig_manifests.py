"""Published manifests that ask for MIG instances: each is served, left to its own plugin, or refused in words."""

from pathlib import Path

import pytest

from apps.clusters.admission.policy import MIG_WORDS, Policy
from apps.clusters.dra import requests
from apps.clusters.formats.asks import Unreadable
from tests.clusters.admission.asking import mutate, validate
from tests.clusters.admission.mig_manifests import CASES, LEFT, REFUSED, SERVED, WHOLE, Case

PAGE = Path(__file__).resolve().parents[3] / "docs" / "kubernetes.md"
WHOLE_GPU = {"tencent.com/vcuda-core": "100"}


def outcome(case: Case, word: str) -> tuple[str, str]:
    """Return what becomes of a case in a cluster where HAMi's pods are rewritten, and what is said of it."""
    return of_pod(case, word) if case.thing["kind"] == "Pod" else of_template(case)


def of_pod(case: Case, word: str) -> tuple[str, str]:
    policy = Policy(translated=frozenset({"HAMi"}), mig=word)
    made = mutate(case.thing, policy)
    answer = validate(made, policy)
    said = " ".join([answer.get("status", {}).get("message", ""), *answer.get("warnings", [])])
    if not answer["allowed"]:
        return REFUSED, said
    if made is not case.thing:
        assert made["spec"]["containers"][0]["resources"]["limits"] == WHOLE_GPU
        return WHOLE, said
    # A resource that our classes serve: it asks for one of them, and nothing is left to say.
    asked = [name for one in made["spec"]["containers"] for name in one["resources"]["limits"]]
    ours = any("gpucloud.io" in name or (word == "serve" and name.startswith("nvidia.com/mig-")) for name in asked)
    return (SERVED if ours else LEFT), said


def of_template(case: Case) -> tuple[str, str]:
    if not requests.asks(case.thing):
        return LEFT, ""
    try:
        assert requests.read_request(case.thing).profile == "1g.10gb"
    except Unreadable as error:
        return REFUSED, str(error)
    return SERVED, ""


@pytest.mark.parametrize("word", MIG_WORDS)
@pytest.mark.parametrize("name", CASES)
def test_a_published_manifest_has_the_result_that_the_page_says(name: str, word: str) -> None:
    case = CASES[name]
    found, said = outcome(case, word)
    assert (found, case.words in said or word != "serve") == (case.result(word), True), said
    if found == REFUSED:
        assert said
    if found == SERVED:
        assert not said.strip()


def test_the_page_has_a_row_of_each() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    wanted = [
        f"| {case.source} | {name} | {case.leave} | {case.serve} | {case.refuse} |" for name, case in CASES.items()
    ]
    assert [row for row in rows if row in wanted] == wanted
