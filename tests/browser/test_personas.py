"""Five people and their jobs, each by its own browser and shell and within a number of clicks.

A platform admin and a team lead at a desk, a data scientist on a phone, a CI engineer whose work is in the shell, and
a contributor who has just started the demo.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.persons import PASSWORD, Person, invite
from tests.cli.commands import Shell, finish, live_claims, new_name
from tests.platform import Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(300)]

POOL = "default"
# Ends well when it is asked to: the exit code is not the program's own.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("up", flush=True)
while True:
    time.sleep(0.1)
"""


@pytest.fixture
def tenant(platform: Platform) -> Iterator[str]:
    """Create a tenant with half a GPU; leave nothing running and no node cordoned."""
    slug = platform.new_tenant(new_name("team"), core=50, memory_mib=24576)
    yield slug
    for claim in live_claims(platform, slug):
        platform.granted("DELETE", f"claims/{claim['uid']}/?wait=20")
    for node in platform.granted("GET", "nodes/")["results"]:
        if node["cordoned"]:
            platform.granted("PATCH", f"nodes/{node['name']}/", {"cordoned": False})


def core_quota(platform: Platform, tenant: str) -> dict[str, Any]:
    (quota,) = platform.granted("GET", f"quotas/?tenant={tenant}&resource=core_percent")["results"]
    return dict(quota)


def raise_core(platform: Platform, tenant: str, hard: int) -> None:
    quota = core_quota(platform, tenant)
    platform.granted("PATCH", f"quotas/{quota['id']}/", {"hard": hard}, If_Match="*")


def shell_of(home: Path, platform: Platform, token: str) -> Shell:
    return Shell(home, GPUCLOUD_URL=platform.url, GPUCLOUD_TOKEN=token)


def create_team(admin: Person, slug: str) -> None:
    """Create a tenant with a quota, and invite its lead."""
    admin.click("link", "Teams")
    admin.click("link", "New tenant")
    admin.fill(Short_name=slug, Name=slug)
    admin.click("button", "Create tenant")
    admin.see_heading(slug)
    admin.click("link", "Create quota")
    admin.fill(Resource="core_percent", Quota="400")
    admin.click("button", "Create quota")
    admin.see("400 %")
    admin.click("link", "Users")
    admin.click("link", "Invite user")
    admin.fill(Name="lena", Tenant=slug, Role="admin")
    admin.click("button", "Create invitation")
    expect(admin.page.locator("#once")).to_contain_text("/invitation/")


def personal_token(person: Person) -> str:
    """Create a personal token; return it as the page shows it, once."""
    person.page.get_by_title("My account").click()
    person.click("link", "New personal token")
    person.fill(Name="laptop")
    person.click("button", "Create token")
    return person.page.locator("#once").inner_text().strip()


def see_drain(person: Person, platform: Platform, claim: dict[str, Any]) -> None:
    """Drain the claim's node; wait for the notice on the page that is open."""
    node = platform.granted("GET", f"claims/{claim['uid']}/")["assignments"][0]["node"]
    platform.granted("POST", f"nodes/{node}/drain/", {"grace_seconds": 600})
    person.see("Its node is being drained")
    platform.granted("PATCH", f"nodes/{node}/", {"cordoned": False})


def release_and_read_report(person: Person) -> None:
    """Release the claim whose page is open; open the report of GPU-hours."""
    person.click("button", "Release…")
    person.click("button", "Release claim")
    expect(person.page.locator("[data-announce] [data-state]")).to_have_text("Released")
    person.click("link", "Teams")
    person.click("link", "Reports")
    person.see("GPU-hours")
    person.check_page()


def test_a_platform_admin_lets_a_team_in_answers_it_and_drains_a_node(
    chrome: Browser, platform: Platform, tenant: str
) -> None:
    asked = {"tenant": tenant, "resource": "core_percent", "amount": 100, "reason": "a course"}
    platform.granted("POST", "quota-requests/", asked)
    running = {"tenant": tenant, "name": "moving", "core_request": 10, "memory_mib": 512, "pool": POOL}
    claim: dict[str, Any] = platform.granted("POST", "claims/?wait=30", running)
    node = claim["assignments"][0]["node"]
    slug = new_name("lab")
    with Person(chrome, platform, most_clicks=24) as admin:
        admin.sign_in_as("operator", (platform.state / "operator.password").read_text().strip())
        admin.check_page()
        create_team(admin, slug)
        # A request waits for an answer.
        admin.click("link", "Work")
        admin.click("link", f"{tenant} requests 100 % more core", exact=False)
        admin.see("Nothing is changed yet")
        admin.check_page()
        admin.click("button", "Approve")
        admin.see("Approved")
        # Maintenance of a node, after a look at the effect.
        admin.click("link", "Fleet")
        admin.click("link", node)
        admin.click("link", "Drain…")
        admin.see("moving")
        admin.fill(Grace_period="600")
        admin.click("button", "Drain node")
        admin.see("Draining")
        until(lambda: platform.granted("GET", f"claims/{claim['uid']}/")["preempt_at"], what="the claim's notice")
        admin.click("button", "Uncordon…")
        admin.click("button", "Uncordon node")
        admin.click("link", "Teams")
        admin.click("link", "Reports")
        admin.see(tenant)
        admin.check_page()
    assert core_quota(platform, tenant)["hard"] == 150


def test_a_data_scientist_on_a_phone_claims_waits_asks_for_more_resizes_and_is_told_of_a_drain(
    chrome: Browser, platform: Platform, tenant: str, tmp_path: Path
) -> None:
    name = new_name("ida")
    with Person(chrome, platform, most_clicks=22, phone=True) as ida:
        ida.accept(invite(platform, tenant, "member", name))
        shell = shell_of(tmp_path, platform, personal_token(ida))
        assert name in shell.data("whoami")["name"]
        # More than is free: the form says so before it is sent.
        ida.click("link", "Work")
        ida.click("link", "Claims")
        ida.click("link", "New claim")
        ida.fill(Name="notebook")
        ida.click("button", "Whole GPU")
        expect(ida.page.locator("#over-quota")).to_be_visible()
        ida.check_page()
        ida.click("button", "Wait in queue")
        ida.see("Core quota exceeded: requested 100 %, 50 % of 50 % available")
        ida.check_page()
        (claim,) = live_claims(platform, tenant)
        described = shell.run("claim", "describe", "notebook").out
        assert "Core quota exceeded: requested 100 %, 50 % of 50 % available" in described
        # Ask the team's lead for the rest, in the shell.
        more = ("--tenant", tenant, "--resource", "core_percent", "--amount", "50", "--reason", "a whole GPU")
        assert shell.data("quota-request", "create", *more)["state"] == "requested"
        raise_core(platform, tenant, 70)
        ida.see("Core quota exceeded: requested 100 %, 70 % of 70 % available")
        # The suggestion starts it.
        ida.page.get_by_role("button", name=re.compile("Apply: .*70")).click()
        state = ida.page.locator("[data-announce] [data-state]")
        expect(state).to_have_text("Active")
        ida.page.get_by_label("Core limit", exact=True).fill("90")
        ida.click("button", "Apply")
        expect(ida.page.locator("#change")).to_contain_text("limit 70 → 90 %")
        expect(ida.page.locator("#change")).to_contain_text(re.compile(r"Applied in \d+ ms|Applied"))
        see_drain(ida, platform, claim)
        release_and_read_report(ida)


def test_a_team_lead_invites_passes_a_request_on_bounds_a_member_and_reads_who_used_what(
    chrome: Browser, platform: Platform, tenant: str, tmp_path: Path
) -> None:
    name, member = new_name("lena"), new_name("max")
    with Person(chrome, platform, most_clicks=22) as lena, Person(chrome, platform, most_clicks=8) as max_:
        lena.accept(invite(platform, tenant, "admin", name))
        lena.click("link", "Teams")
        lena.click("link", "Users")
        lena.click("link", "Invite user")
        lena.fill(Name=member, Tenant=tenant, Role="member")
        lena.click("button", "Create invitation")
        # The member asks, and this goes to the lead first.
        max_.accept(lena.page.locator("#once").inner_text().strip())
        max_.click("link", "Requests")
        max_.click("link", "Request more quota")
        max_.fill(Tenant=tenant, Resource="core_percent", Additional_amount="50", Purpose="a larger model")
        max_.click("button", "Send request")
        max_.see("sent to the admins")
        max_.check_page()
        lena.click("link", "Work")
        lena.click("link", "50 % more core", exact=False)
        lena.check_page()
        lena.click("button", "Forward to operators")
        lena.see("Open")
        # One member gets no more than a part of the team's quota.
        lena.click("link", "Teams")
        lena.click("link", tenant)
        lena.click("link", "Limits")
        lena.click("link", "New member limit")
        lena.fill(Member=member, Resource="core_percent", Limit="20")
        lena.click("button", "Create")
        lena.see("20 %")
        lena.check_page()
        lena.click("link", "Efficiency")
        lena.page.get_by_label("Group by", exact=True).select_option("person")
        lena.see_heading("Efficiency")
        lena.check_page()
    (limit,) = platform.granted("GET", f"member-limits/?tenant={tenant}")["results"]
    assert (limit["member"], limit["hard"]) == (member, 20)


def test_a_ci_engineer_makes_a_token_runs_a_job_and_learns_by_exit_codes(
    chrome: Browser, platform: Platform, tenant: str, tmp_path: Path
) -> None:
    with Person(chrome, platform, most_clicks=8) as carl:
        carl.accept(invite(platform, tenant, "admin", new_name("carl")))
        carl.click("link", "Teams")
        carl.click("link", "Tokens")
        carl.click("link", "New token")
        carl.click("link", "CI pipeline")
        carl.fill(Tenant=tenant)
        carl.check_page()
        carl.click("button", "Create token")
        shell = shell_of(tmp_path, platform, carl.page.locator("#once").inner_text().strip())
    run = ("run", "--core", "30", "--memory", "1GiB", "--wait", "20s")
    assert shell.run(*run, "--", sys.executable, "-c", "import sys; sys.exit(7)").code == 7
    over = shell.run("run", "--core", "80", "--memory", "1GiB", "--", "true")
    assert over.code == 3
    assert "Core quota exceeded: requested 80 %, 50 % of 50 % available" in over.err
    assert shell.run("run", "--core", "5", "--memory", "1GiB", "--tenant", "nobody", "--", "true").code == 2
    job = shell.start(*run, "--", sys.executable, "-c", PROGRAM)
    assert job.stdout is not None
    assert job.stdout.readline() == "up\n"
    (row,) = json.loads(shell.run("claim", "list", "-o", "json").out)
    assert shell.data("claim", "resize", row["uid"][:8], "--limit", "60", "--wait", "20s")["core_limit"] == 60
    node = row["assignments"][0]["node"]
    platform.granted("POST", f"nodes/{node}/drain/", {"grace_seconds": 1})
    ended = finish(job)
    assert (ended.code, "Its node is being drained" in ended.err) == (76, True), ended
    assert live_claims(platform, tenant) == []


def test_a_contributor_tries_the_printed_logins_reads_why_and_changes_nothing_by_a_plan(
    chrome: Browser, platform: Platform, tmp_path: Path
) -> None:
    printed = platform.log.read_text()
    name, password = re.findall(r"sign in +(\S+) / (\S+)", printed)[1]
    with Person(chrome, platform, most_clicks=8, phone=True) as cora:
        cora.sign_in_as(name, password)
        cora.check_page()
        cora.click("link", "Claims")
        cora.click("link", "notebook")
        expect(cora.page.locator("#live")).to_have_attribute("data-mode", "live")
        cora.check_page()
        cora.click("button", "Language")
        cora.click("button", "繁體中文")
        expect(cora.page.locator("html")).to_have_attribute("lang", "zh-hant")
        cora.check_page()
        cora.click("link", "工作")
    olga = Shell(tmp_path, GPUCLOUD_URL=platform.url, GPUCLOUD_TOKEN_FILE=str(platform.state / "operator.token"))
    document = olga.run("export", "--tenant", "acme").out
    (tmp_path / "acme.yaml").write_text(document)
    assert "kind: Tenant" in document
    plan = olga.run("apply", "-f", "acme.yaml", "--dry-run")
    assert (plan.code, "no changes" in plan.out + plan.err) == (0, True), plan
    decided = platform.granted("GET", "rounds/")["results"]
    assert decided
    assert PASSWORD not in printed
