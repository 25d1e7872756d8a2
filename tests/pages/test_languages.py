"""Languages of the pages: chosen by the reader, without scripts; programs are answered in English."""

from collections.abc import Callable
from pathlib import Path

import pytest
from django.test import Client

from gpucloud import messages
from tests.cast import Cast, Machine, ask, placed
from tests.house.test_languages import VisibleText
from tests.pages.conftest import SignIn
from tests.pages.test_queries import everywhere, grow

__all__ = ["grow"]

CHINESE = {"Accept-Language": "zh-TW,zh;q=0.9,en;q=0.5"}


def test_the_browsers_language_is_spoken(cast: Cast, machine: Machine, browser: SignIn) -> None:
    claim, _ = placed(cast, machine)
    anna = browser("anna")
    for path, words in (
        ("/", "總覽"),
        ("/claims/", "目前顯存"),
        ("/queue/", "佇列"),
        (f"/claims/{claim.uid}/", "運作中"),
    ):
        page = anna.get(path, headers=CHINESE).content.decode()
        assert '<html lang="zh-hant">' in page
        assert words in page, path
    assert "运行中" in anna.get(f"/claims/{claim.uid}/", headers={"Accept-Language": "zh-CN"}).content.decode()
    assert "Overview" in anna.get("/", headers={"Accept-Language": "fr"}).content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["olga", "anna"])
def test_no_page_in_chinese_says_a_sentence_in_english(browser: SignIn, grow: Callable[[str], None], name: str) -> None:
    grow("a")
    known = messages.read(messages.file_of("zh_Hant", ".po"))
    # Names and codes are the same in every language, and some are also words: a condition is called Ready, and the
    # audit log has a value True.
    same = {"Ready", "True"}
    english = {one for one, said in known.items() if one != said and (" " in one or one[0].isupper())} - same
    reader, paths = browser(name), everywhere()
    left = {}
    for path in [*paths, "/clusters/", "/new-cluster/", "/integrations/"]:
        answer, page = reader.get(path, headers=CHINESE), VisibleText()
        page.feed(answer.content.decode())
        left[path] = {" ".join(text.split()) for text in page.texts} & english
    assert {path: words for path, words in left.items() if words} == {}


def test_a_refusal_names_its_kind_in_the_readers_language(cast: Cast, browser: SignIn) -> None:
    refused = browser("olga").post("/new-tenant/", {"slug": "acme", "name": "x", "weight": "1"}, headers=CHINESE)
    assert refused.status_code == 422
    assert "名稱已被使用" in refused.content.decode()
    denied = browser("anna").get("/nodes/", headers=CHINESE)
    assert denied.status_code == 403
    assert "只有營運人員可以這麼做。" in denied.content.decode()
    lacking = browser("max").post("/tenants/acme/members/", {"username": "vera", "role": "admin"}, headers=CHINESE)
    assert lacking.status_code == 403
    assert "需要租戶 acme 的管理員角色。" in lacking.content.decode()


def test_what_was_done_is_said_in_the_readers_language(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga = browser("olga")
    page = olga.post("/nodes/gpu1/cordon/", {"cordoned": "yes"}, follow=True, headers=CHINESE).content.decode()
    assert "節點 gpu1 不接受新的申領，原有的保留。" in page


def test_the_switch_is_a_form_and_is_kept(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    page = anna.get("/claims/?state=queued").content.decode()
    assert 'name="language"' in page
    assert 'value="/claims/?state=queued"' in page
    answer = anna.post("/language/", {"language": "zh-hans", "next": "/claims/?state=queued"})
    assert answer["Location"] == "/claims/?state=queued"
    assert answer.cookies["django_language"]["httponly"]
    assert '<html lang="zh-hans">' in anna.get("/claims/", headers=CHINESE).content.decode()
    assert anna.post("/language/", {"language": "en", "next": "https://evil.example/"})["Location"] == "/"


def test_the_sign_in_speaks_too(cast: Cast) -> None:
    client = Client()
    assert "登入" in client.get("/sign-in/", headers=CHINESE).content.decode()
    refused = client.post("/sign-in/", {"username": "anna", "password": "wrong"}, headers=CHINESE)
    assert "名稱與密碼不符" in refused.content.decode()


def test_programs_are_answered_in_english_whoever_was_served_before(cast: Cast, browser: SignIn) -> None:
    anna = browser("anna")
    anna.get("/", headers=CHINESE)
    answer = anna.get("/api/v1/claims/nonsense/", headers=CHINESE)
    assert answer.status_code == 404
    assert answer.content.decode().isascii()
    refused = anna.get("/api/v1/claims/?state=nonsense", headers=CHINESE)
    assert refused.status_code == 400
    assert refused.content.decode().isascii()
    assert "Content-Language" not in refused.headers


def test_what_is_said_of_a_waiting_claim_and_how_old_it_is(cast: Cast, machine: Machine, browser: SignIn) -> None:
    ask(cast, name="large", core_request=100, gpu_count=4)
    page = browser("max").get("/claims/", headers=CHINESE).content.decode()
    assert "待處理" in page
    assert "前</time>" in page
    assert "中 4 張 GPU" in page


def test_a_catalogue_is_read_as_it_was_written(tmp_path: Path) -> None:
    found = {'a "b"\n': "x", "one\0many": "x", "alone": "y"}
    known = {'a "b"\n': "甲", "one\0many": "乙"}
    messages.catalogue("zh_Hans", found, known).save(str(tmp_path / "django.po"))
    assert messages.read(tmp_path / "django.po") == {**known, "alone": ""}


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ('<a>{% translate "Hello" %}</a>', ["Hello"]),
        ("{% blocktranslate trimmed %}\n a {{ b }}\n c{% endblocktranslate %}", ["a %(b)s c"]),
        ("{% blocktranslate count n=x %}one{% plural %}{{ n }}{% endblocktranslate %}", ["one\0%(n)s"]),
        ('{% word "core" _("Core now") %}', ["Core now"]),
        ("Hello", []),
        ('{{ a|default:_("none") }}', ["none"]),
        ("{% blocktranslate trimmed asvar t %}Remove {{ n }}?{% endblocktranslate %}", ["Remove %(n)s?"]),
    ],
)
def test_a_templates_messages_are_found(template: str, said: list[str]) -> None:
    assert list(messages.of_template(template)) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("from django.utils.translation import gettext as _\n_('Done.')", ["Done."]),
        ("gettext_lazy('one ' 'two'); gettext(text); other('three')", ["one two"]),
        ("class Taken(Conflict, code='taken', title='It is taken'):\n    pass", ["It is taken"]),
        ("class Page:\n    title = 'Pools'", []),
    ],
)
def test_a_modules_messages_are_found(code: str, said: list[str]) -> None:
    assert list(messages.of_code(code)) == said
