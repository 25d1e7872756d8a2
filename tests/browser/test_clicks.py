"""Clicks and typed fields of each person, from a fresh demo to what they came for: exactly as docs/clicks.md says."""

import os
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.browser import jupyter
from tests.browser.clicks import Counted
from tests.browser.persons import Person
from tests.browser.test_notebooks_in_a_browser import JUPYTER, answers
from tests.browser.test_terminals_in_a_browser import enter
from tests.cli.commands import new_name
from tests.notices.conftest import MailServer, serve_mail
from tests.platform import Platform, until

pytestmark = [pytest.mark.browser, pytest.mark.serial, pytest.mark.timeout(420)]
NOT_ROOT = pytest.mark.skipif(os.geteuid() == 0, reason="a demo's agent that runs as root starts no jobs")
TRAIN = """echo epoch 1
until [ -e go ]; do sleep 0.2; done
echo epoch 2
exit 3
"""


def sign_in(person: Person, platform: Platform, name: str) -> None:
    """Sign in with the login that the demo has printed."""
    person.sign_in_as(name, (platform.state / f"{name}.password").read_text().strip())


@pytest.fixture
def jobs_run(platform: Platform) -> Iterator[None]:
    """Wait for a node that runs jobs; stop those of the demo's member at the end."""
    until(lambda: platform.granted("GET", "nodes/sim-1/")["jobs"], what="the node to offer jobs")
    yield
    for job in platform.granted("GET", "jobs/?tenant=acme")["results"]:
        platform.call("POST", f"jobs/{job['uid']}/stop/", {})


@NOT_ROOT
def test_a_data_scientist_opens_a_notebook_and_resizes_it(chrome: Browser, platform: Platform, jobs_run: None) -> None:
    with Person(chrome, platform, most_clicks=12) as dana:
        path = Counted(dana)
        sign_in(dana, platform, "member")
        dana.check_page()
        dana.click("link", "New notebook")
        dana.check_page()
        dana.fill(Jupyter=JUPYTER)
        dana.click("button", "Start notebook")
        with dana.page.context.expect_page() as opened:
            dana.click("link", "Open notebook")
        inside = opened.value
        until(lambda: answers(inside), what="Jupyter to answer")
        jupyter.start_cell(inside, jupyter.WATCH_MEMORY)
        until(lambda: "sees 4096 MiB" in jupyter.last_line(inside), what="the cell to see its memory")
        path.ends("Data scientist: a running cell in a notebook")
        path = Counted(dana)
        dana.page.bring_to_front()
        dana.fill(Memory="8")
        dana.click("button", "Apply")
        until(lambda: "sees 8192 MiB" in jupyter.last_line(inside), what="the running cell to see more memory")
        path.ends("Data scientist: more memory for the running cell")
        dana.check_page()
        # The next time nothing is to be typed.
        path = Counted(dana)
        dana.click("link", "Overview")
        dana.click("link", "New notebook")
        expect(dana.page.get_by_label("Jupyter", exact=True)).to_have_value(JUPYTER)
        dana.click("button", "Start notebook")
        with dana.page.context.expect_page() as opened:
            dana.click("link", "Open notebook")
        path.ends("Data scientist: the next notebook")


@NOT_ROOT
def test_an_engineer_runs_an_archive_follows_it_and_opens_a_terminal(
    chrome: Browser, platform: Platform, jobs_run: None, tmp_path: Path
) -> None:
    (tmp_path / "train.sh").write_text(TRAIN)
    with tarfile.open(tmp_path / "train.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "train.sh", "train.sh")
    with Person(chrome, platform, most_clicks=12) as eli:
        path = Counted(eli)
        sign_in(eli, platform, "member")
        eli.click("link", "New job")
        eli.check_page()
        eli.fill(Command="sh train.sh")
        eli.choose_file("Or an archive", tmp_path / "train.tar.gz")
        eli.click("button", "Run job")
        log = eli.page.get_by_role("log", name="Output")
        expect(log).to_contain_text("epoch 1")
        path.ends("Engineer: the live log of a job from an archive")
        path = Counted(eli)
        eli.click("button", "Open terminal")
        expect(eli.page.get_by_role("status").filter(has_text="The terminal is open.")).to_be_visible()
        path.ends("Engineer: a terminal in the job")
        eli.check_page()
        enter(eli.page, "touch go")
        path = Counted(eli)
        expect(log).to_contain_text("epoch 2")
        expect(eli.page.locator("#living")).to_contain_text(re.compile(r"Exit code\s*3"))
        path.ends("Engineer: the job's exit code, on the page that is open")
        eli.check_page()


def test_an_administrator_lets_a_team_in_and_changes_fair_share_after_a_preview(
    chrome: Browser, platform: Platform
) -> None:
    department, slug = new_name("dept"), new_name("team")
    platform.granted("POST", "organisations/", {"slug": department, "name": "Science"})
    asked = {"organisation": department, "resource": "core_percent", "hard": 200}
    platform.granted("POST", "organisation-quotas/", asked)
    with Person(chrome, platform, most_clicks=12) as olga:
        path = Counted(olga)
        sign_in(olga, platform, "operator")
        olga.click("link", "Teams")
        olga.click("link", "New tenant")
        olga.check_page()
        olga.fill(Short_name=slug, Name="Vision", Organisation=department, Core_quota="100", Memory_quota="24")
        olga.click("button", "Create tenant")
        olga.see("100 %")
        olga.check_page()
        olga.click("link", "Invite user")
        olga.click("button", "Create invitation")
        link = olga.page.locator("#once").inner_text().strip()
        path.ends("Administrator: a team with quotas in a department, and its first member's invitation")
    quotas = platform.granted("GET", f"quotas/?tenant={slug}")["results"]
    assert {one["resource"]: one["hard"] for one in quotas} == {"core_percent": 100, "memory_mib": 24576}
    with Person(chrome, platform, most_clicks=4) as mia:
        path = Counted(mia)
        mia.page.goto(link)
        mia.fill(Name=new_name("mia"), Password="correct horse battery", Password_again="correct horse battery")
        mia.click("button", "Create account")
        mia.see(slug)
        path.ends("Member: signed in by the invitation")
    change_fair_share(chrome, platform)


def change_fair_share(chrome: Browser, platform: Platform) -> None:
    """Change the fair share of a pool after a look at the effect."""
    pool = new_name("pool")
    platform.granted("POST", "pools/", {"name": pool})
    with Person(chrome, platform, most_clicks=12) as olga:
        path = Counted(olga)
        sign_in(olga, platform, "operator")
        olga.click("link", "Fleet")
        olga.click("link", "Pools")
        olga.click("link", pool)
        olga.fill(Fair_share="decayed")
        olga.click("button", "Preview")
        olga.see("fair share: current → decayed")
        olga.see("Nothing is changed yet.")
        olga.check_page()
        assert platform.granted("GET", f"pools/{pool}/")["fair_share"] == "current"
        olga.click("button", "Apply")
        olga.see("is changed")
        path.ends("Administrator: another fair share of a pool, after a preview")
    assert platform.granted("GET", f"pools/{pool}/")["fair_share"] == "decayed"


def test_a_budget_owner_sees_what_was_spent_and_says_what_follows(chrome: Browser, platform: Platform) -> None:
    tenant = platform.new_tenant(new_name("spending"))
    asked: dict[str, Any] = {"tenant": tenant, "gpu_hours": "100", "period": "month"}
    budget = platform.granted("POST", "budgets/", asked)
    with Person(chrome, platform, most_clicks=10) as otto:
        path = Counted(otto)
        sign_in(otto, platform, "operator")
        otto.click("link", "Teams")
        otto.click("link", tenant)
        otto.click("link", "Budgets")
        otto.see("of 100")
        otto.check_page()
        path.ends("Budget owner: what was spent")
        path = Counted(otto)
        otto.click("link", "Change", exact=False)
        otto.fill(Once_it_is_spent="requeue")
        otto.check_page()
        otto.click("button", "Apply")
        otto.see("Set:")
        path.ends("Budget owner: what happens once it is spent")
    assert platform.granted("GET", f"budgets/{budget['id']}/")["when_spent"] == "requeue"


def test_somebody_chooses_notices_and_gets_one(chrome: Browser, tmp_path_factory: pytest.TempPathFactory) -> None:
    mails = MailServer()
    state = tmp_path_factory.mktemp("notices") / "state"
    with serve_mail(mails) as port:
        environment = {"EMAIL_HOST": "127.0.0.1", "EMAIL_PORT": str(port), "EMAIL_USE_TLS": "0"}
        with Platform(state, environment=environment) as platform, Person(chrome, platform, most_clicks=8) as nora:
            asked = {"username": "nora", "email": "nora@example.org", "tenant": "acme", "role": "member"}
            nora.accept(str(platform.granted("POST", "invitations/", asked)["link"]))
            path = Counted(nora)
            nora.page.get_by_title("My account").click()
            nora.click("link", "Notices")
            nora.see("Nothing is mailed to you yet.")
            nora.check_page()
            nora.click("button", "Save notices")
            nora.see("Your notices are saved.")
            path.ends("Anybody: the notices that most people want")
            nora.click("button", "Send a test mail")
            until(lambda: "nora@example.org" in mails.to, what="the test mail")
            until(lambda: "Test of your notices" in [*map(subject, mails.came)][-1], what="its subject")


def subject(mail: Any) -> str:
    return str(mail["Subject"])
