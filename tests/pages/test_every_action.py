"""Every change of the API can be made on a page, or is listed here with a reason."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.urls import get_resolver
from django.utils import timezone

from apps.scheduling.models import Claim
from tests.cast import Cast, Machine, ask, lose, placed
from tests.pages.conftest import SignIn
from tests.scheduling.routes import OPERATIONS

# By method and route: the names of the pages' routes that do the same.
PAGES: dict[str, str] = {
    "POST budgets/": "new-budget",
    "PATCH budgets/<int:pk>/": "budget",
    "DELETE budgets/<int:pk>/": "remove-budget",
    "POST claims/": "new-claim",
    "PATCH claims/<uuid:uid>/": "resize reallocate claim-sharing",
    "DELETE claims/<uuid:uid>/": "release",
    "POST claims/<uuid:uid>/release/": "release",
    "POST claims/<uuid:uid>/renew/": "renew-claim",
    "POST claims/<uuid:uid>/move/": "move",
    "POST claims/<uuid:uid>/suspend/": "suspend",
    "POST claims/<uuid:uid>/resume/": "resume",
    "POST clusters/": "new-cluster",
    "PATCH clusters/<slug:name>/": "cluster cluster-connection cluster-quotas",
    "DELETE clusters/<slug:name>/": "remove-cluster",
    "POST clusters/<slug:name>/import/": "import-cluster",
    "POST clusters/<slug:name>/namespaces/": "bind-namespace",
    "PATCH clusters/<slug:name>/namespaces/<int:pk>/": "rebind-namespace",
    "DELETE clusters/<slug:name>/namespaces/<int:pk>/": "unbind-namespace",
    "PATCH gpus/<slug:uuid>/": "cordon-gpu",
    "POST gpus/<slug:uuid>/clear/": "clear",
    "POST limit-ranges/": "new-limit-range",
    "PATCH limit-ranges/<int:pk>/": "limit-range",
    "DELETE limit-ranges/<int:pk>/": "remove-limit-range",
    "POST member-limits/": "new-member-limit",
    "PATCH member-limits/<int:pk>/": "member-limit",
    "DELETE member-limits/<int:pk>/": "remove-member-limit",
    "POST nodes/": "new-node",
    "PATCH nodes/<slug:name>/": "cordon node-settings",
    "POST nodes/<slug:name>/drain/": "drain",
    "POST nodes/<slug:name>/enrolment/": "renew-enrolment",
    "POST nodes/<slug:name>/forget/": "forget-node",
    "POST nodes/<slug:name>/lift-fence/": "unfence",
    "POST nodes/<slug:name>/repair/": "repair",
    "POST pools/": "new-pool",
    "PATCH pools/<slug:name>/": "pool",
    "POST pools/<slug:name>/rebalance/": "rebalance-pool",
    "POST pools/<slug:name>/what-if/": "what-if",
    "POST prices/": "prices",
    "DELETE prices/<int:pk>/": "remove-price",
    "POST proposals/<uuid:uid>/accept/": "accept-proposal",
    "POST proposals/<uuid:uid>/dismiss/": "dismiss-proposal",
    "POST quota-requests/": "new-request",
    "POST quota-requests/<uuid:uid>/accept/": "request",
    "POST quota-requests/<uuid:uid>/approve/": "request",
    "POST quota-requests/<uuid:uid>/counter/": "request",
    "POST quota-requests/<uuid:uid>/deny/": "request",
    "POST quota-requests/<uuid:uid>/forward/": "request",
    "POST quota-requests/<uuid:uid>/withdraw/": "request",
    "POST quotas/": "new-quota",
    "PATCH quotas/<int:pk>/": "quota",
    "DELETE quotas/<int:pk>/": "remove-quota",
    "POST job-arrays/<uuid:uid>/stop/": "stop-job-array",
    "POST jobs/": "new-job",
    "POST jobs/<uuid:uid>/stop/": "job-stop",
    "POST reservations/": "new-reservation",
    "PATCH reservations/<uuid:uid>/": "change-reservation",
    "DELETE reservations/<uuid:uid>/": "give-back",
    "POST reservations/<uuid:uid>/release/": "give-back",
    "POST scheduler-configuration/": "integrations",
    "POST organisations/": "organisations",
    "PATCH organisations/<slug:slug>/": "organisation",
    "DELETE organisations/<slug:slug>/": "remove-organisation",
    "POST organisation-quotas/": "new-organisation-quota",
    "PATCH organisation-quotas/<int:pk>/": "organisation-quota",
    "DELETE organisation-quotas/<int:pk>/": "remove-organisation-quota",
    "POST tenants/": "new-tenant",
    "PATCH tenants/<slug:slug>/": "change-tenant",
    "DELETE tenants/<slug:slug>/": "remove-tenant",
    "POST tenants/<slug:slug>/members/": "set-member",
    "DELETE tenants/<slug:slug>/members/<str:username>/": "remove-member",
    "POST tokens/": "new-token",
    "DELETE tokens/<slug:key>/": "revoke-token",
    "POST tokens/<slug:key>/rotate/": "rotate-token",
    "PATCH me/": "change-time-zone",
    "DELETE me/sessions/": "end-session",
    "DELETE me/sessions/<slug:session>/": "end-session",
    "POST me/tokens/": "new-personal-token",
    "PATCH me/notices/": "notices unsubscribe",
    "POST me/notices/test/": "test-notices",
    "PATCH users/<str:username>/": "activate-user deactivate-user make-operator unmake-operator",
    "POST users/<str:username>/password-reset/": "reset-password",
    "POST invitations/": "new-invitation",
    "DELETE invitations/<uuid:uid>/": "revoke-invitation",
    "POST webhooks/": "new-webhook",
    "PATCH webhooks/<uuid:uid>/": "webhook webhook-on webhook-off",
    "DELETE webhooks/<uuid:uid>/": "remove-webhook",
    "POST webhooks/<uuid:uid>/deliveries/<uuid:delivery>/redeliver/": "redeliver",
    "POST webhooks/<uuid:uid>/rotate/": "rotate-webhook",
    "POST webhooks/<uuid:uid>/test/": "test-webhook",
}
WITHOUT = {
    "POST claims/<uuid:uid>/remote/": "Its ticket is for a program elsewhere; `gpucloud run --remote` asks for it.",
    "POST job-files/": "A page's request has 1 MiB at most; the command packs a directory.",
    "POST job-files/<uuid:uid>/pieces/": "As above.",
    "POST nodes/enrol/": "A machine's agent asks for it with its one-time token, not a person.",
    "POST clusters/join/": "A cluster's agents ask for it with their service account, not a person.",
    "POST pools/<slug:name>/consolidation/accept/": "No page lists a consolidation's plans; the command does.",
}
WRITES = {f"{method} {route.pattern}" for route, method in OPERATIONS if method != "GET"}


def test_every_write_of_the_api_has_its_page_or_its_reason() -> None:
    told = [*PAGES, *WITHOUT]
    assert len(told) == len(set(told))
    assert set(told) == WRITES


def test_every_page_that_is_named_is_there() -> None:
    named = {name for names in PAGES.values() for name in names.split()}
    assert named <= {key for key in get_resolver().reverse_dict if isinstance(key, str)}


def test_every_page_that_is_named_is_led_to_from_another() -> None:
    root = Path(settings.BASE_DIR)
    sources = [*root.glob("templates/**/*.html"), *root.glob("apps/console/**/*.py")]
    said = "".join(path.read_text() for path in sources if path.name != "urls.py")
    named = {name for names in PAGES.values() for name in names.split()}
    lost = {name for name in named if f"'{name}'" not in said and f'"{name}"' not in said}
    # Its link is in mails only.
    assert lost == {"unsubscribe"}


def test_a_lease_is_renewed_from_the_claims_page(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim = ask(cast, lease_seconds=3600)
    Claim.objects.filter(pk=claim.pk).update(lease_until=timezone.now() + timedelta(minutes=1))
    way, path = f"/claims/{claim.uid}/renew/", f"/claims/{claim.uid}/"
    assert way in browser("max").get(path).content.decode()
    seen = browser("vera").get(path).content.decode()
    assert "Lease expires" in seen
    assert way not in seen
    assert browser("vera").post(way).status_code == 403
    assert "now runs until" in browser("max").post(way, follow=True).content.decode()
    claim.refresh_from_db()
    assert claim.lease_until is not None
    assert claim.lease_until > timezone.now() + timedelta(minutes=59)


def test_a_claim_without_a_lease_has_nothing_to_renew(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim = ask(cast)
    way = f"/claims/{claim.uid}/renew/"
    assert way not in browser("max").get(f"/claims/{claim.uid}/").content.decode()
    assert "The claim has no lease" in browser("max").post(way, follow=True).content.decode()


@pytest.mark.parametrize("gone", [True, False])
def test_a_lost_node_is_forgotten_on_its_page_and_no_other(
    cast: Cast, machine: Machine, browser: SignIn, gone: bool
) -> None:
    claim, _ = placed(cast, machine)
    if gone:
        lose(machine)
    way = "/nodes/gpu1/forget/"
    assert (way in browser("olga").get("/nodes/gpu1/").content.decode()) == gone
    assert browser("anna").post(way).status_code == 403
    said = browser("olga").post(way, follow=True).content.decode()
    assert ("Node gpu1 is forgotten" in said) == gone
    assert ("The node is not lost" in said) != gone
    claim.refresh_from_db()
    assert claim.state == ("released" if gone else "active")
