"""The part of Tabler's style sheet that pages use: a seventh of it (`make styles`).

A rule is removed if one of its classes is named nowhere: in no class attribute of a template, no text in a script, no
line of Python about a class. The other rules keep their order.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import tinycss2

ROOT: Final = Path(__file__).parent.parent
WHOLE: Final = ROOT / "static/vendor/tabler-1.6.1.min.css"
USED: Final = ROOT / "static/css/tabler.css"
# Files that name classes, and the delimiters there.
ATTRIBUTE: Final = re.compile(r'class="((?:[^"{]|\{%.*?%\}|\{\{.*?\}\}|\{)*)"')
QUOTED: Final = re.compile(r"""["'`]([^"'`\n]*)""")
LINE: Final = re.compile(r""".*class["'=].*""")
SOURCES: Final = {
    "templates/**/*.html": (ATTRIBUTE,),
    "static/js/*.js": (QUOTED,),
    "apps/**/*.py": (LINE, QUOTED),
    "gpucloud/**/*.py": (LINE, QUOTED),
}
WORD: Final = re.compile(r"[A-Za-z_][\w-]*")
# At-rules that contain rules.
NESTS: Final = {"media", "supports", "layer", "container"}


def render() -> str:
    """Return the current style sheet."""
    return filter_rules(WHOLE.read_text(), words())


def words() -> set[str]:
    """Return all words that may be a class."""
    found: set[str] = set()
    for glob, narrower in SOURCES.items():
        for file in ROOT.glob(glob):
            texts = [file.read_text()]
            for pattern in narrower:
                texts = [part for text in texts for part in pattern.findall(text)]
            found.update(word for text in texts for word in WORD.findall(text))
    return found


def filter_rules(sheet: str, words: set[str]) -> str:
    """Return the rules of a sheet for these classes, one per line."""
    return "".join(f"{rule}\n" for rule in _filter(tinycss2.parse_stylesheet(sheet, skip_whitespace=True), words))


def _filter(rules: Iterable[Any], words: set[str]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [tinycss2.serialize(one) for one in _selectors(rule.prelude) if _is_used(one, words)]
            if selectors:
                yield f"{','.join(selectors)}{{{tinycss2.serialize(rule.content)}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in NESTS and rule.content is not None:
            inner = "".join(_filter(tinycss2.parse_rule_list(rule.content, skip_whitespace=True), words))
            if inner:
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inner}}}"
        elif rule.type == "comment":
            # Its licence; the source map is not served.
            if rule.value.startswith("!"):
                yield rule.serialize()
        else:
            yield rule.serialize()


def _selectors(prelude: Iterable[Any]) -> Iterator[list[Any]]:
    one: list[Any] = []
    for token in prelude:
        if token.type == "literal" and token.value == ",":
            yield one
            one = []
        else:
            one.append(token)
    yield one


def _is_used(selector: Iterable[Any], words: set[str]) -> bool:
    """Return True if all classes of the selector are used. Classes within `:is()` or `:not()` are ignored."""
    after_dot = False
    for token in selector:
        if after_dot and token.type == "ident" and token.value not in words:
            return False
        after_dot = token.type == "literal" and token.value == "."
    return True


if __name__ == "__main__":
    USED.write_text(render())
    print(f"{USED.relative_to(ROOT)}: {USED.stat().st_size >> 10} of {WHOLE.stat().st_size >> 10} KiB")
