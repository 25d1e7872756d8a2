"""Nothing that a page says is left in one language: templates are wholly translated, catalogues whole and compiled."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from django.template.base import Lexer, TokenType

from gpucloud import messages

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
# Folders (and the files beside them) whose every sentence is in every language; a folder joins as a whole.
TRANSLATED = {
    "audit", "claims", "gpus", "help", "parts", "pools", "proposals", "queue", "reservations", "rounds", "search",
}  # fmt: skip
# The same in every language; and attributes that a block gives to a tag of its base.
NOT_SAID = re.compile(r"""\b(gpucloud|GPU|CSV|JSON|MiB|GiB|Ctrl|Enter|Tab|Esc)\b|\bdata-[a-z-]+="[^"]*\"""")
SPOKEN = {"aria-label", "title", "placeholder", "alt"}
SILENT = {"code", "pre", "script", "style"}
# Words given to a tag or a part, such as a meter's label.
GIVEN = re.compile(r"""(?<!\()"([A-Z][a-z]+(?: [^"]*)?)\"""")
SAYING = ("meter ", "bar ", "word ", "include ")


class Said(HTMLParser):
    """What a reader sees or hears of a template's own text."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._silent = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in SILENT
        self.texts += [value or "" for name, value in attrs if name in SPOKEN]

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in SILENT

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.texts.append(data)


def untranslated(template: str) -> Iterator[str]:
    """Words of a template that stand outside any translation."""
    text, translating = "", False
    for token in Lexer(template).tokenize():
        if token.token_type is TokenType.TEXT:
            text += "" if translating else token.contents
        elif token.token_type is TokenType.BLOCK:
            translating = token.contents.startswith("blocktranslate") or (
                translating and not token.contents.startswith("endblocktranslate")
            )
            if token.contents.startswith(SAYING):
                yield from GIVEN.findall(token.contents)
    said = Said()
    said.feed(text)
    yield from (" ".join(words.split()) for words in said.texts if re.search("[A-Za-z]{2}", NOT_SAID.sub("", words)))


def translated() -> list[Path]:
    return sorted(file for folder in ("", *TRANSLATED) for file in (TEMPLATES / folder).glob("*.html"))


@pytest.mark.parametrize("file", translated(), ids=lambda file: str(file.relative_to(TEMPLATES)))
def test_no_text_of_a_template_is_left_untranslated(file: Path) -> None:
    assert list(untranslated(file.read_text())) == []


@pytest.mark.parametrize("locale", messages.LOCALES)
def test_every_message_has_its_translation_and_what_is_compiled_is_what_is_written(locale: str) -> None:
    assert list(messages.faults(locale, messages.messages())) == []


@pytest.mark.parametrize(
    ("template", "left"),
    [
        ("<p>Hello</p>", ["Hello"]),
        ('<a title="Go there">{% translate "Go" %}</a>', ["Go there"]),
        ('{% meter used "Core used" %}', ["Core used"]),
        ('{% meter used _("Core used") %}<code>kubectl get</code> GPU {{ index }} {# a remark #}', []),
        ("{% blocktranslate %}Hello {{ name }}{% endblocktranslate %} there", ["there"]),
    ],
)
def test_the_check_sees_what_is_left(template: str, left: list[str]) -> None:
    assert list(untranslated(template)) == left
