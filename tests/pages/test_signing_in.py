"""Sign-in by password: limit of attempts, messages, and the lifetime of sessions."""

import threading
from datetime import timedelta
from importlib import import_module
from typing import Any

import pytest
from django.conf import settings as configured
from django.db import connection
from django.test import Client
from django.utils import timezone

from apps.quotas import tasks
from apps.quotas.models import Attempts, AuditEvent, User
from apps.quotas.models import UserSession as Session
from apps.quotas.services import attempts
from gpucloud.web.sessions import BEGUN, USED
from tests.cast import Api, Cast, token_for

PASSWORD = "correct horse battery"
CLAIM = {"tenant": "acme", "core_request": 10, "memory_mib": 100}


@pytest.fixture
def anna(cast: Cast) -> User:
    user = User.objects.get(username="anna")
    user.set_password(PASSWORD)
    user.save()
    return user


def try_once(name: str = "anna", password: str = "wrong", *, client: Client | None = None, address: str = "") -> Any:
    client = client or Client()
    more: dict[str, Any] = {"REMOTE_ADDR": address} if address else {}
    return client.post("/sign-in/", {"username": name, "password": password}, **more)


def use_up(name: str = "anna", **where: Any) -> None:
    for _ in range(attempts.ACCOUNT.most):
        assert try_once(name, **where).status_code == 200


def came_in(answer: Any) -> bool:
    assert answer.status_code in (200, 302, 429), answer.content
    return bool(answer.status_code == 302)


def assert_locked_out(answer: Any) -> bool:
    """Check the refusal: a message and a header say when to try again."""
    if answer.status_code != 429:
        return False
    assert 0 < int(answer.headers["Retry-After"]) <= attempts.ACCOUNT.window.total_seconds() + 1
    assert "Too many attempts: try again in 15 minutes." in answer.content.decode()
    return True


def test_after_five_wrong_passwords_the_right_one_has_to_wait(anna: User) -> None:
    use_up()
    assert assert_locked_out(try_once(password=PASSWORD))
    Attempts.objects.update(ends_at=timezone.now())
    assert came_in(try_once(password=PASSWORD))


def test_asking_while_shut_does_not_move_the_end_out(anna: User) -> None:
    use_up()
    ends = list(Attempts.objects.order_by("key").values_list("ends_at", "taken"))
    for _ in range(10):
        assert assert_locked_out(try_once())
    assert list(Attempts.objects.order_by("key").values_list("ends_at", "taken")) == ends


def test_the_right_password_forgets_the_wrong_ones(anna: User) -> None:
    for _ in range(3):
        for _ in range(attempts.ACCOUNT.most - 1):
            try_once()
        assert came_in(try_once(password=PASSWORD))


def test_an_account_that_does_not_exist_is_answered_just_the_same(anna: User) -> None:
    def texts(name: str) -> list[tuple[int, str]]:
        answers = [try_once(name, address=f"10.0.0.{len(name)}") for _ in range(attempts.ACCOUNT.most + 1)]
        return [(answer.status_code, answer.content.decode().replace(name, "NAME")) for answer in answers]

    hidden = "csrfmiddlewaretoken"
    for known, unknown in zip(texts("anna"), texts("nobody-of-that-name"), strict=True):
        assert known[0] == unknown[0]
        assert [line for line in known[1].splitlines() if hidden not in line] == [
            line for line in unknown[1].splitlines() if hidden not in line
        ]


def test_a_stranger_elsewhere_shuts_nobody_out(anna: User) -> None:
    use_up(address="203.0.113.9")
    assert assert_locked_out(try_once(password=PASSWORD, address="203.0.113.9"))
    assert came_in(try_once(password=PASSWORD, address="198.51.100.1"))


def test_a_stranger_behind_the_same_address_shuts_no_known_browser_out(anna: User) -> None:
    mine = Client()
    assert came_in(try_once(password=PASSWORD, client=mine))
    mine.post("/sign-out/")
    for number in range(attempts.ADDRESS.most + 5):
        try_once(f"guess-{number}")
    use_up_answers = [try_once() for _ in range(attempts.ACCOUNT.most + 1)]
    assert use_up_answers[-1].status_code == 429
    assert came_in(try_once(password=PASSWORD, client=mine))


def test_a_known_browser_is_limited_too_and_known_for_one_name_only(anna: User) -> None:
    mine = Client()
    assert came_in(try_once(password=PASSWORD, client=mine))
    mine.post("/sign-out/")
    use_up(client=mine)
    assert assert_locked_out(try_once(password=PASSWORD, client=mine))
    use_up("olga")
    assert assert_locked_out(try_once("olga", client=mine))


def test_a_forged_cookie_makes_no_browser_known(anna: User) -> None:
    use_up()
    forger = Client()
    forger.cookies["known_browser"] = '["anna","00"]:1:x'
    assert assert_locked_out(try_once(password=PASSWORD, client=forger))


def test_one_address_does_not_try_many_names(cast: Cast) -> None:
    for number in range(attempts.ADDRESS.most):
        assert try_once(f"guess-{number}").status_code == 200
    assert try_once("another").status_code == 429
    assert try_once("another", address="198.51.100.1").status_code == 200


def test_the_longest_name_comes_in_and_is_written_down(anna: User) -> None:
    User.objects.create_user("b" * 150, password=PASSWORD)
    assert came_in(try_once("b" * 150, PASSWORD))
    assert AuditEvent.objects.filter(action="person.sign_in", object_id="b" * 150).exists()


@pytest.mark.parametrize("known", [False, True], ids=["an address", "a known browser"])
def test_spellings_that_sign_in_the_same_person_share_their_tries(anna: User, known: bool) -> None:
    """The form reads full-width, mathematical and circled letters as the plain ones."""
    client = Client()
    if known:
        assert came_in(try_once(password=PASSWORD, client=client))
        client.post("/sign-out/")
    full_width, bold = "\uff41\uff4e\uff4e\uff41", "\U0001d41a\U0001d427\U0001d427\U0001d41a"
    spellings = [full_width, bold, "\u24d0nna", " anna ", "\u1d43nna"]
    for spelling in spellings:
        assert not came_in(try_once(spelling, client=client))
    assert assert_locked_out(try_once(password=PASSWORD, client=client))


def test_ipv6_addresses_of_one_customer_are_one(anna: User) -> None:
    for number in range(attempts.ACCOUNT.most):
        try_once(address=f"2001:db8::{number + 1}")
    assert assert_locked_out(try_once(address="2001:db8::ffff"))
    assert try_once(address="2001:db8:0:1::1").status_code == 200


def test_ipv4_addresses_in_ipv6s_clothes_are_not_all_one(anna: User) -> None:
    use_up(address="::ffff:10.0.0.1")
    assert assert_locked_out(try_once(address="10.0.0.1"))
    assert came_in(try_once(password=PASSWORD, address="::ffff:10.0.0.2"))


@pytest.mark.parametrize("address", ["", "unknown", "10.0.0.1:4711", "fe80::1%eth0", "\x00", "é"])
def test_what_a_proxy_sends_instead_of_an_address_breaks_nothing(anna: User, address: str) -> None:
    try_once(client=(client := Client(REMOTE_ADDR=address)))
    assert came_in(try_once(password=PASSWORD, client=client))
    api = Api(token_for(None), REMOTE_ADDR=address)
    assert api.post("tenants/", {"slug": "initech"}).status == 201
    assert turned_away(Api(token_for(None, cidrs=["10.0.0.0/8"]), REMOTE_ADDR=address))
    assert turned_away(Api("gpc_0.x", REMOTE_ADDR=address))


def turned_away(api: Api) -> bool:
    return api.get("me/").status == 401


def test_what_was_typed_is_not_kept(cast: Cast) -> None:
    try_once("my-password-by-mistake")
    assert "mistake" not in str(list(Attempts.objects.values()))


def test_thirty_two_at_once_get_five_tries(real_cast: Cast) -> None:
    """Counting after the check of the password would let them all through: the attempt is counted before."""
    let_through: list[int] = []
    together = threading.Barrier(32, timeout=60)

    def guess() -> None:
        try:
            together.wait()
            attempts.take_sign_in(account="anna", address="203.0.113.9")
            let_through.append(1)
        except attempts.TooManyAttempts:
            pass
        finally:
            connection.close()

    threads = [threading.Thread(target=guess) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(let_through) == attempts.ACCOUNT.most


def test_counting_after_the_password_was_looked_at_lets_more_through(real_cast: Cast) -> None:
    """The control: all read the number of attempts, then check the password, and count last."""
    key = attempts.ACCOUNT.key("anna", "203.0.113.9")
    looked = threading.Barrier(12, timeout=60)
    seen: list[int] = []

    def guess() -> None:
        try:
            taken = Attempts.objects.filter(key=key).values_list("taken", flat=True).first() or 0
            seen.append(taken)
            looked.wait()
        finally:
            connection.close()

    threads = [threading.Thread(target=guess) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken < attempts.ACCOUNT.most for taken in seen) > attempts.ACCOUNT.most


def test_a_flood_of_wrong_tokens_is_told_to_wait_and_right_ones_go_on(
    cast: Cast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "TOKEN", attempts.Limit("token", 3, timedelta(minutes=5)))
    wrong = Api("gpc_000000000000.wrong")
    assert [wrong.get("me/").code for _ in range(4)] == ["unauthenticated"] * 3 + ["too-many-attempts"]
    answer = wrong.get("me/")
    assert answer.status == 429
    assert 0 < int(answer.headers["Retry-After"]) <= 301
    assert cast.max.get("me/").status == 200


def test_signing_in_is_in_the_audit_log(anna: User) -> None:
    try_once()
    try_once(password=PASSWORD)
    event = AuditEvent.objects.get(action="person.sign_in")
    assert (event.actor, event.after, event.source_ip) == ("user:anna", {"method": "password"}, "127.0.0.1")


def test_a_session_that_somebody_planted_is_not_the_one_that_signs_in(anna: User) -> None:
    store = import_module(configured.SESSION_ENGINE).SessionStore()
    store.create()
    victim = Client()
    victim.cookies["sessionid"] = store.session_key
    assert came_in(try_once(password=PASSWORD, client=victim))
    assert victim.cookies["sessionid"].value != store.session_key
    thief = Client()
    thief.cookies["sessionid"] = store.session_key
    assert thief.get("/").status_code == 302


def test_signing_out_is_a_post_and_ends_the_session_on_the_server(anna: User) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(anna)
    stolen = client.cookies["sessionid"].value
    assert client.get("/sign-out/").status_code == 405
    assert client.post("/sign-out/").status_code == 403
    assert client.get("/").status_code == 200
    token = client.cookies["csrftoken"].value
    assert client.post("/sign-out/", {"csrfmiddlewaretoken": token}).status_code == 302
    thief = Client()
    thief.cookies["sessionid"] = stolen
    assert thief.get("/").status_code == 302


def test_the_form_needs_its_csrf_token(anna: User) -> None:
    client = Client(enforce_csrf_checks=True)
    assert try_once(password=PASSWORD, client=client).status_code == 403


def test_a_session_with_its_csrf_token_uses_the_api_and_without_it_only_reads(anna: User) -> None:
    api = Api(None, enforce_csrf_checks=True)
    api.client.force_login(anna)
    api.client.get("/claims/new/")
    token = api.client.cookies["csrftoken"].value
    assert api.get("me/").status == 200
    for wrong in ({}, {"X_CSRFToken": "x" * 64}):
        answer = api.post("tokens/", {"name": "ci", "tenant": "acme"}, **wrong)
        assert (answer.status, answer.code) == (403, "denied")
    assert api.post("tokens/", {"name": "ci", "tenant": "acme"}, X_CSRFToken=token).status == 201


@pytest.fixture
def client(anna: User) -> Client:
    client = Client()
    client.force_login(anna)
    assert client.get("/").status_code == 200
    return client


def age(client: Client, key: str, seconds: float) -> None:
    """Let this much time pass."""
    session = client.session
    session[key] -= seconds
    session.save()


def ends_in(client: Client) -> float:
    row = Session.objects.get(session_key=client.cookies["sessionid"].value)
    return (row.expire_date - timezone.now()).total_seconds()


def test_a_session_ends_two_hours_after_its_last_use(client: Client) -> None:
    assert ends_in(client) == pytest.approx(7200, abs=60)
    Session.objects.update(expire_date=timezone.now() + timedelta(seconds=30))
    age(client, USED, 90)
    Session.objects.update(expire_date=timezone.now() + timedelta(seconds=30))
    assert client.get("/").status_code == 200
    assert ends_in(client) == pytest.approx(7200, abs=60), "a use moves the end out"
    Session.objects.update(expire_date=timezone.now())
    assert client.get("/").status_code == 302


def test_a_session_ends_twelve_hours_after_the_sign_in_however_much_it_is_used(client: Client) -> None:
    age(client, BEGUN, 11 * 3600)
    age(client, USED, 90)
    assert client.get("/").status_code == 200
    assert ends_in(client) == pytest.approx(3600, abs=60)
    age(client, BEGUN, 3600)
    assert client.get("/").status_code == 302


def test_the_cookie_ends_with_the_session_and_is_kept_from_scripts(anna: User) -> None:
    client = Client()
    try_once(password=PASSWORD, client=client)
    cookie = client.cookies["sessionid"]
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "Lax", "/")
    assert int(cookie["max-age"]) == pytest.approx(7200, abs=60)
    known = client.cookies["known_browser"]
    assert (known["httponly"], known["samesite"], known["path"]) == (True, "Lax", "/sign-in/")


def test_a_use_is_not_written_at_every_request(client: Client) -> None:
    row = Session.objects.get()
    client.get("/")
    assert Session.objects.get().session_data == row.session_data


def test_a_socket_learns_that_its_session_has_ended(client: Client) -> None:
    store = import_module(configured.SESSION_ENGINE).SessionStore(client.cookies["sessionid"].value)
    assert store.exists(store.session_key)
    Session.objects.update(expire_date=timezone.now())
    assert not store.exists(store.session_key)


def test_what_has_ended_is_dropped(client: Client) -> None:
    try_once()
    assert tasks.forget_sign_ins() == 0
    assert (Session.objects.count(), Attempts.objects.count()) == (1, 2)
    Session.objects.update(expire_date=timezone.now())
    Attempts.objects.update(ends_at=timezone.now())
    assert tasks.forget_sign_ins() == 2
    assert not Session.objects.exists()


@pytest.mark.parametrize(
    ("page", "back"),
    [("http://testserver/prices/?x=1", "/prices/"), ("http://elsewhere/prices/", "/"), ("http://[x", "/"), ("", "/")],
)
def test_whose_session_ended_before_a_form_was_sent_comes_back_to_the_form(db: None, page: str, back: str) -> None:
    answer = Client().post("/prices/5/remove/", headers={"Referer": page})
    assert answer.headers["Location"] == f"/sign-in/?next={back}&ended=1"


@pytest.mark.parametrize(
    "said",
    [
        {"Cookie": 'sessionid="\\000aaaaaaaaaaaaaaaa"'},
        {"Cookie": "sessionid=a'; --aaaaaaaaaaa"},
        {"HX-Request": "true", "HX-Current-URL": "http://[x"},
    ],
)
def test_a_stranger_with_headers_of_their_own_is_asked_to_sign_in(db: None, said: dict[str, str]) -> None:
    answer = Client().get("/", headers=said)
    assert answer.status_code in (302, 401)
    assert "/sign-in/?next=/&ended=1" in {answer.headers.get("Location"), answer.headers.get("HX-Redirect")}
