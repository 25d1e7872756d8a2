"""Translations: every text of templates, forms and answers can be translated, and the catalogues are complete."""

import ast
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest
from django import forms
from django.template.base import Lexer, TokenType
from django.utils.functional import Promise

from apps.console.shell.sign_in import SignInForm
from gpucloud import messages
from gpucloud.errors import GpucloudError

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = ROOT / "templates"
PAGES = sorted((ROOT / "apps" / "console").rglob("*.py"))
# The same in every language; and attributes that a block gives to a tag of its base.
NOT_SAID = re.compile(r"""\b(gpucloud|gpc_|GPU|CSV|JSON|MiB|GiB|Ctrl|Enter|Tab|Esc)\b|\bdata-[a-z-]+="[^"]*\"""")
SPOKEN = {"aria-label", "title", "placeholder", "alt"}
SILENT = {"code", "pre", "script", "style"}
# Words given to a tag or an include, such as a meter's label; `text` is code to be copied.
GIVEN = re.compile(r"""(_\(|\btext=)?"([^"]*)\"""")
WORDS = re.compile(r"[A-Z][a-z]+( |$)|.*[a-z] [a-z]")
SAYING = ("meter ", "bar ", "word ", "include ")
# Words that a filter puts in a value's place, and the one filter that knows English only.
FILTERED = re.compile(r"""\|(?:default|default_if_none|yesno):["']([^"']*[A-Za-z]{2}[^"']*)["']|\|(pluralize)""")


class VisibleText(HTMLParser):
    """A parser of the text that a reader of a template sees or hears."""

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
    """Return words of a template that are outside any translation."""
    text, translating = "", False
    for token in Lexer(template).tokenize():
        if token.token_type is TokenType.TEXT:
            text += "" if translating else token.contents
        elif token.token_type is TokenType.BLOCK:
            translating = token.contents.startswith("blocktranslate") or (
                translating and not token.contents.startswith("endblocktranslate")
            )
            if token.contents.startswith(SAYING):
                yield from (words for mark, words in GIVEN.findall(token.contents) if not mark and WORDS.match(words))
        elif token.token_type is TokenType.VAR:
            yield from ("".join(found) for found in FILTERED.findall(token.contents))
    said = VisibleText()
    said.feed(text)
    yield from (" ".join(words.split()) for words in said.texts if re.search("[A-Za-z]{2}", NOT_SAID.sub("", words)))


@pytest.mark.parametrize("file", sorted(TEMPLATES.rglob("*.html")), ids=lambda file: str(file.relative_to(TEMPLATES)))
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
        ('{% include "a.html" with what="of the fleet" id="b-"|add:c text="manage.py it" %}', ["of the fleet"]),
        ('{{ a|default:"none" }}{{ a|default:_("none") }}{{ a|default:"–" }}{{ a|date:"Y-m" }}', ["none"]),
        ("claim{{ number|pluralize }}", ["pluralize", "claim"]),
    ],
)
def test_the_check_sees_what_is_left(template: str, left: list[str]) -> None:
    assert list(untranslated(template)) == left


def form_kinds() -> set[type[forms.Form]]:
    """Return every form that the pages' modules define."""
    modules = [import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in PAGES]
    return {
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, forms.Form) and kind.__module__ == module.__name__
    }


def test_every_fields_label_and_help_follow_the_reader() -> None:
    """A field without a label would show its name. The sign-in's labels come from Django's form."""
    fields = [
        (kind.__name__, name, field)
        for kind in form_kinds()
        if kind is not SignInForm
        for name, field in kind.base_fields.items()
        if not isinstance(field.widget, forms.HiddenInput)
    ]
    assert [(kind, name) for kind, name, field in fields if not isinstance(field.label, Promise)] == []
    said = [(name, getattr(field, part, "")) for _, name, field in fields for part in ("help_text", "empty_label")]
    assert [(name, words) for name, words in said if isinstance(words, str) and re.search("[a-z]", words)] == []


def test_what_a_page_answers_after_a_change_is_looked_up() -> None:
    """`messages.success(request, …)` never gets a plain text: an f-string would be English for everybody."""
    fixed = [
        f"{file.name}:{call.lineno}"
        for file in PAGES
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("messages.")
        if any(isinstance(part, ast.JoinedStr | ast.Constant) for part in call.args[1:])
    ]
    assert fixed == []


def test_every_errors_title_is_translated() -> None:
    kinds, titles = [GpucloudError], set[str]()
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        titles |= {kind.title} if kind.__module__.startswith(("apps.", "gpucloud.")) else set()
    assert titles <= set(messages.messages())


def test_scripts_say_only_what_the_page_gives_them() -> None:
    given = set(re.findall(r"data-(\w+)=", (TEMPLATES / "parts" / "script_words.html").read_text()))
    said = {
        word for file in (ROOT / "static" / "js").glob("*.js") for word in re.findall(r'say\("(\w+)"', file.read_text())
    }
    assert said
    assert said <= given
