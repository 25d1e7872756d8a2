"""Browsers of the cast, for this folder's tests."""

from collections.abc import Callable

import pytest
from django.test import Client

from apps.quotas.models import User
from tests.cast import Cast, Machine, cast, give_plenty, real_cast

__all__ = ["cast", "real_cast"]

SignIn = Callable[..., Client]


@pytest.fixture
def browser(cast: Cast) -> SignIn:
    """Return a function that signs in a member of the cast."""

    def sign_in(name: str, *, enforce_csrf_checks: bool = False) -> Client:
        client = Client(enforce_csrf_checks=enforce_csrf_checks)
        client.force_login(User.objects.get(username=name))
        return client

    return sign_in


@pytest.fixture
def machine(cast: Cast) -> Machine:
    """Create a node of four GPUs, and tenants with plenty of quota."""
    give_plenty(cast.acme, cast.globex)
    return Machine("gpu1", cast.pool)
