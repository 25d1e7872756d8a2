"""AdmissionReview in both versions as the API server writes it, and invalid reviews."""

import json

import pytest

from apps.clusters.admission import reviews
from tests.clusters.admission.asking import review
from tests.clusters.formats.pods import pod


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
def test_the_answer_has_the_version_and_uid_of_the_question(version: str) -> None:
    asked = reviews.parse(review(pod({}), version=version))
    answer = reviews.answer(asked, reviews.Verdict())
    assert (answer["apiVersion"], answer["kind"]) == (version, "AdmissionReview")
    assert answer["response"] == {"uid": asked.uid, "allowed": True}


def test_a_refusal_has_its_words_in_the_status_and_no_patch() -> None:
    asked = reviews.parse(review(pod({})))
    verdict = reviews.Verdict(refusals=["One.", "Two."], warnings=["x" * 300], patch=[{"op": "add"}])
    response = reviews.answer(asked, verdict)["response"]
    assert not response["allowed"]
    assert response["status"]["message"] == "One. Two."
    assert "patch" not in response
    assert len(response["warnings"][0]) == 256


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"apiVersion": "admission.k8s.io/v1"}',
        b'{"apiVersion": "admission.k8s.io/v1", "request": {}}',
        b'{"apiVersion": "v9", "request": {"uid": "1"}}',
        b'{"apiVersion": ["admission.k8s.io/v1"], "request": {"uid": "1"}}',
        b"\xff",
    ],
)
def test_what_is_no_review_is_refused(body: bytes) -> None:
    with pytest.raises(reviews.NotAReview):
        reviews.parse(body)


def test_a_deletion_has_no_object() -> None:
    body = json.loads(review(pod({})))
    body["request"] |= {"object": None, "operation": "DELETE"}
    assert reviews.parse(json.dumps(body).encode()).thing == {}
