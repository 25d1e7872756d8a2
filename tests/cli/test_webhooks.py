"""Creating a webhook, testing it, and listing its deliveries."""

import pytest

from tests.cli.commands import Shell

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]


def test_a_webhook_is_made_tried_and_removed(olga: Shell, tenant: str) -> None:
    asked = ("webhook", "create", "--tenant", tenant, "--event", "claim.active", "--event", "node.lost")
    # Loopback by a name: the sender refuses the address, and nothing leaves this machine.
    made = olga.data(*asked, "--to", "https://localhost:1/hook")
    assert made["secret"].startswith("whsec_")
    assert made["events"] == ["claim.active", "node.lost"]
    assert [row["uid"] for row in olga.data("webhook", "list", "--tenant", tenant)] == [made["uid"]]
    tried = olga.run("webhook", "test", made["uid"])
    assert (tried.code, "not an address of the public internet" in tried.err) == (1, True)
    (row,) = olga.data("webhook", "deliveries", made["uid"])
    assert (row["kind"], row["state"]) == ("webhook.test", "pending")
    # The worker retries five seconds later, and a busy machine may take as long to ask.
    assert row["attempts"] >= 1
    assert olga.run("webhook", "redeliver", made["uid"], row["uid"]).code == 3
    assert olga.data("webhook", "rotate", made["uid"])["secret"] != made["secret"]
    assert olga.run("webhook", "delete", made["uid"]).code == 0
    assert olga.data("webhook", "list", "--tenant", tenant) == []
    assert olga.run(*asked, "--to", "https://127.0.0.1/hook").code == 2
