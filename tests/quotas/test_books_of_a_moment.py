"""The tests' own look at the books: of one moment, while others write."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
from django.db import connection

from apps.quotas.models import ResourceQuota
from tests import books
from tests.cast import Cast, ask, assert_books_agree, give_plenty
from tests.racing import race

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def interrupted(real_cast: Cast, monkeypatch: pytest.MonkeyPatch) -> Cast:
    """Charge a claim, by another session, once the look has read the quotas."""
    give_plenty(real_cast.acme)
    before = books.all_quotas

    def all_quotas() -> list[ResourceQuota]:
        found = before()
        [made] = race([partial(ask, real_cast, core_request=10, memory_mib=256)])
        assert not isinstance(made, Exception)
        return found

    monkeypatch.setattr(books, "all_quotas", all_quotas)
    return real_cast


def test_books_agree_while_claims_are_charged(interrupted: Cast) -> None:
    assert_books_agree()
    assert not connection.in_atomic_block


def test_control_read_one_after_the_other_they_do_not(interrupted: Cast, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def any_moment() -> Iterator[None]:
        yield

    monkeypatch.setattr(books, "one_moment", any_moment)
    with pytest.raises(AssertionError):
        assert_books_agree()
