"""Sixty-four clients at once, over HTTP, against the whole platform."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.platform import Answer, Platform, until

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

CLIENTS, HOLDS = 64, 10
CORE, MEMORY_MIB = 5, 512


def test_a_quota_that_holds_ten_grants_exactly_ten_of_sixty_four(platform: Platform) -> None:
    tenant = platform.new_tenant(f"race-{uuid.uuid4().hex[:8]}", core=HOLDS * CORE, memory_mib=1 << 20)
    start = threading.Barrier(CLIENTS)

    def client(number: int) -> Answer:
        body = {"tenant": tenant, "name": f"racer-{number}", "core_request": CORE, "memory_mib": MEMORY_MIB}
        start.wait()
        return platform.call("POST", "claims/", body)

    with ThreadPoolExecutor(CLIENTS) as clients:
        answers = list(clients.map(client, range(CLIENTS)))
    granted = [answer for answer in answers if answer.status == 201]
    refused = [answer for answer in answers if answer.status == 409]
    assert (len(granted), len(refused)) == (HOLDS, CLIENTS - HOLDS)
    assert {answer.body["type"] for answer in refused} == {"/problems/quota-exceeded"}
    assert platform.used(tenant) == {"core_percent": HOLDS * CORE, "memory_mib": HOLDS * MEMORY_MIB}

    for answer in granted:
        platform.granted("DELETE", f"claims/{answer.body['uid']}/")
    until(lambda: not any(platform.used(tenant).values()), what="everything to be given back")
