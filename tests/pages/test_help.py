"""Help on pages: terms with popovers, the whole glossary, and the first steps of an empty installation."""

import re
from pathlib import Path

import pytest
from django.template import Context, Template

from gpucloud.web.glossary import CHAPTERS, FIELDS, WORDS
from tests.cast import Cast, Machine, ask
from tests.pages.conftest import SignIn

TEMPLATES = Path(__file__).resolve().parents[2] / "templates"


def test_help_has_every_word_once(cast: Cast, browser: SignIn) -> None:
    page = browser("gus").get("/help/").content.decode()
    for key, word in WORDS.items():
        assert page.count(f'id="{key}"') == 1, key
        assert str(word.meaning).split("’")[0] in page
    assert sum(len(chapter.words) for chapter in CHAPTERS) == len(WORDS)
    assert set(FIELDS.values()) <= set(WORDS)


def test_every_word_that_a_template_explains_is_in_the_glossary() -> None:
    used = {key for file in TEMPLATES.rglob("*.html") for key in re.findall(r'{% word "([^"]+)"', file.read_text())}
    assert used
    assert used <= set(WORDS)


def test_a_word_opens_what_it_means() -> None:
    said = Template('{% word "core" "Core now" %}{% word "core" %}{% what "core_limit" %}{% what "name" %}')
    page = said.render(Context({}))
    targets = re.findall(r'popovertarget="([^"]+)"', page)
    assert len(targets) == len(set(targets)) == 3
    assert re.findall(r'popover id="([^"]+)"', page) == targets
    assert 'aria-label="What is “Core”?"' in page
    assert 'href="/help/#limit"' in page
    with pytest.raises(KeyError):
        Template('{% word "flux" %}').render(Context({}))


def test_words_head_columns_and_stand_beside_fields(cast: Cast, machine: Machine, browser: SignIn) -> None:
    assert str(WORDS["leased"].meaning) in browser("olga").get("/nodes/").content.decode()
    form = browser("max").get("/claims/new/").content.decode()
    for key in ("request", "limit", "memory", "tenant"):
        assert f'href="/help/#{key}"' in form


def test_an_empty_installation_says_its_three_first_steps(cast: Cast, browser: SignIn) -> None:
    olga = browser("olga")
    page = olga.get("/").content.decode()
    assert "Three first steps" in page
    assert page.count("To do:") == 3
    for command in ("gpucloud node add", "gpucloud tenant create", "gpucloud quota create", "gpucloud claim create"):
        assert command in page
    assert "Three first steps" not in browser("anna").get("/").content.decode()


def test_each_step_is_ticked_when_it_is_true_and_the_list_goes(cast: Cast, machine: Machine, browser: SignIn) -> None:
    olga = browser("olga")
    page = olga.get("/", headers={"HX-Request": "true"}).content.decode()
    assert (page.count("Done:"), page.count("To do:")) == (2, 1)
    assert "gpucloud node add" not in page
    ask(cast)
    assert "Three first steps" not in olga.get("/").content.decode()
