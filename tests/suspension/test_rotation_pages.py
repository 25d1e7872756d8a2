"""The rotation on pages: of a claim, of a GPU, of a pool, and of all policies."""

import pytest
from django.test import Client
from django.urls import reverse

from apps.quotas.models import Pool, User
from tests.cast import Cast, Machine, ask
from tests.suspension.rotations import LONG, Clock, clock, machine, running, states, work

__all__ = ["clock", "machine"]
pytestmark = pytest.mark.django_db


def read(name: str, page: str, *arguments: object) -> str:
    """Return the text of a page as this user sees it."""
    client = Client()
    client.force_login(User.objects.get(username=name))
    answer = client.get(reverse(page, args=arguments))
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def test_pages_say_who_is_in_and_who_comes_next(cast: Cast, machine: Machine, clock: Clock) -> None:
    claims = running(cast, machine, clock)
    for _ in range(2):
        work(cast, machine, clock)
        clock.forward(LONG)
    work(cast, machine, clock)
    found = dict(zip(states(claims), claims, strict=True))
    inside = read("max", "claim", found["active"].uid)
    assert "Shares its GPUs by time" in inside
    assert "It makes room for another claim <time" in inside
    assert "3 claims rotate on its GPUs." in inside
    outside = [read("max", "claim", claim.uid) for claim in claims if claim != found["active"]]
    assert any("It is out, and comes in next. Its turn begins <time" in page for page in outside)
    assert any("It is out, at place 2 of those that wait." in page for page in outside)
    gpu = read("olga", "gpu", machine.gpu().uuid)
    assert "Claims that share this GPU by time" in gpu
    assert gpu.count("out, place") == 2
    assert "by time, up to 3 × a GPU, slices of" in read("olga", "policies")


def test_pages_without_rotation_say_nothing_of_it(cast: Cast, machine: Machine, clock: Clock) -> None:
    claim = ask(cast)
    assert "Shares its GPUs by time" not in read("max", "claim", claim.uid)
    assert "Claims that share this GPU by time" not in read("olga", "gpu", machine.gpu().uuid)


def test_an_operator_sets_it_on_the_pools_page(cast: Cast, machine: Machine) -> None:
    page = read("olga", "pool", cast.pool.name)
    assert 'name="slice_seconds"' in page
    assert 'name="oversubscribe"' in page
    answer = cast.olga.patch(f"pools/{cast.pool.name}/", {"oversubscribe": 9})
    assert answer.status == 400
    assert cast.olga.patch(f"pools/{cast.pool.name}/", {"oversubscribe": None}).status == 200
    assert Pool.objects.get(pk=cast.pool.pk).oversubscribe is None
