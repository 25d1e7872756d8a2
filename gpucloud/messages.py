"""``python -m gpucloud.messages``: update the translation catalogues from templates and code.

Each language has a text file (``django.po``, which translators edit) and a compiled file that Django reads
(``django.mo``); polib writes both, and nobody needs GNU gettext. ``--check`` changes nothing and reports what is
missing or stale.
"""

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import polib
from django.utils.translation.template import templatize

ROOT = Path(__file__).resolve().parent.parent
LOCALES = {"zh_Hant": "繁體中文", "zh_Hans": "简体中文"}
CALLS = {"_", "gettext", "gettext_lazy", "gettext_noop", "ngettext", "ngettext_lazy"}
STRING = r"""(u?'(?:\\.|[^'\\])*'|u?"(?:\\.|[^"\\])*")"""
# Calls that `templatize` leaves of a template's tags; it blanks the rest.
IN_TEMPLATES = re.compile(rf"(?:\b(n)?gettext|\b_)\(\s*{STRING}(?:\s*,\s*{STRING})?")
# A message's key: the singular and, after NUL, the plural.
PLURAL = "\0"

Catalogue = dict[str, str]


def messages() -> dict[str, str]:
    """Return every message, with the first file that contains it."""
    found: dict[str, str] = {}
    for file in sorted((ROOT / "templates").rglob("*.html")):
        for message in of_template(file.read_text()):
            found.setdefault(message, str(file.relative_to(ROOT)))
    for folder in ("gpucloud", "apps"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for message in of_code(file.read_text()):
                found.setdefault(message, str(file.relative_to(ROOT)))
    return found


def of_template(text: str) -> Iterator[str]:
    """Return the messages of a template's tags."""
    for many, one, more in IN_TEMPLATES.findall(templatize(text)):
        yield PLURAL.join(ast.literal_eval(part) for part in ((one, more) if many else (one,)))


def of_code(text: str) -> Iterator[str]:
    """Return the messages of calls with plain strings, and the titles of errors, which pages show."""
    if "gettext" not in text and "title" not in text:
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            yield from _title(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in CALLS:
            said = node.args[:2] if node.func.id.startswith("n") else node.args[:1]
            strings = [part.value for part in said if isinstance(part, ast.Constant) and isinstance(part.value, str)]
            if strings:
                yield PLURAL.join(strings)


def _title(kind: ast.ClassDef) -> Iterator[str]:
    """Return an error class' title: `class Name(Kind, code="…", title="…")`, as `gpucloud.errors` has them."""
    for said in kind.keywords:
        if said.arg == "title" and isinstance(said.value, ast.Constant):
            yield str(said.value.value)


def file_of(locale: str, suffix: str) -> Path:
    return ROOT / "locale" / locale / "LC_MESSAGES" / f"django{suffix}"


def read(file: Path) -> Catalogue:
    """Return messages and translations of a catalogue."""
    return {
        PLURAL.join(filter(None, (entry.msgid, entry.msgid_plural))): (
            entry.msgstr_plural.get(0, "") if entry.msgid_plural else entry.msgstr
        )
        for entry in polib.pofile(str(file), wrapwidth=0)
    }


def catalogue(locale: str, found: dict[str, str], known: Catalogue) -> polib.POFile:
    """Return the catalogue: every message in the order of the files that say it, with its translation where known."""
    made = polib.POFile(wrapwidth=0)
    made.header = LOCALES[locale]
    made.metadata = {
        "Language": locale, "Content-Type": "text/plain; charset=UTF-8", "Plural-Forms": "nplurals=1; plural=0;"
    }  # fmt: skip
    for message, file in sorted(found.items(), key=lambda item: (item[1], item[0])):
        one, _, many = message.partition(PLURAL)
        said = known.get(message, "")
        plural = {"msgid_plural": many, "msgstr_plural": {0: said}} if many else {"msgstr": said}
        made.append(polib.POEntry(msgid=one, occurrences=[(file, "")], **plural))
    return made


def faults(locale: str, found: dict[str, str]) -> Iterator[str]:
    """Return the faults of a language's files as sentences."""
    source = file_of(locale, ".po")
    known = read(source)
    for message in sorted(set(found) - {key for key, said in known.items() if said}):
        yield f"{locale}: no translation of {message!r} ({found[message]})"
    for message, said in known.items():
        if said and _names(message) != _names(said):
            yield f"{locale}: {message!r} and {said!r} name different values"
    if file_of(locale, ".mo").read_bytes() != polib.pofile(str(source), wrapwidth=0).to_binary():
        yield f"{locale}: django.mo is not made from django.po"


def _names(text: str) -> set[str]:
    return set(re.findall(r"%\(\w+\)[sd]|\{\w*\}|(?<!%)%[sd]", text))


def main() -> int:
    parser = argparse.ArgumentParser(prog="messages", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="say what is missing, change nothing")
    found = messages()
    if parser.parse_args().check:
        wrong = [fault for locale in LOCALES for fault in faults(locale, found)]
        print("\n".join([*wrong, "Run `make messages`."] if wrong else []), end="")  # noqa: T201
        return 1 if wrong else 0
    for locale in LOCALES:
        source = file_of(locale, ".po")
        source.parent.mkdir(parents=True, exist_ok=True)
        made = catalogue(locale, found, read(source) if source.exists() else {})
        made.save(str(source))
        made.save_as_mofile(str(file_of(locale, ".mo")))
    return 0


if __name__ == "__main__":
    sys.exit(main())
