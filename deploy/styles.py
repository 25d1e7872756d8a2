"""What pages use of Tabler's sheet: a seventh of it, which is what browsers get (`make styles`).

A rule goes where it is for a class that nothing of ours names: no class attribute of a template, no text in a script,
no line of Python about a class. The rest, and the order, stay as they are.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import tinycss2

ROOT: Final = Path(__file__).parent.parent
WHOLE: Final = ROOT / "static/vendor/tabler-1.6.1.min.css"
USED: Final = ROOT / "static/css/tabler.css"
# Where classes are named, and between what.
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
# At-rules that hold rules.
NESTS: Final = {"media", "supports", "layer", "container"}


def made() -> str:
    """The sheet as it should be."""
    return used(WHOLE.read_text(), words())


def words() -> set[str]:
    """Whatever may be a class."""
    found: set[str] = set()
    for glob, narrower in SOURCES.items():
        for file in ROOT.glob(glob):
            texts = [file.read_text()]
            for pattern in narrower:
                texts = [part for text in texts for part in pattern.findall(text)]
            found.update(word for text in texts for word in WORD.findall(text))
    return found


def used(sheet: str, words: set[str]) -> str:
    """What is left of a sheet where there are these classes, a rule a line."""
    return "".join(f"{rule}\n" for rule in _kept(tinycss2.parse_stylesheet(sheet, skip_whitespace=True), words))


def _kept(rules: Iterable[Any], words: set[str]) -> Iterator[str]:
    for rule in rules:
        if rule.type == "qualified-rule":
            selectors = [tinycss2.serialize(one) for one in _selectors(rule.prelude) if _mentioned(one, words)]
            if selectors:
                yield f"{','.join(selectors)}{{{tinycss2.serialize(rule.content)}}}"
        elif rule.type == "at-rule" and rule.lower_at_keyword in NESTS and rule.content is not None:
            inner = "".join(_kept(tinycss2.parse_rule_list(rule.content, skip_whitespace=True), words))
            if inner:
                yield f"@{rule.at_keyword}{tinycss2.serialize(rule.prelude)}{{{inner}}}"
        elif rule.type == "comment":
            # Its licence; where the sheet's source map is, nobody asks.
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


def _mentioned(selector: Iterable[Any], words: set[str]) -> bool:
    """Whether all its classes are. What stands in `:is()` or `:not()` decides nothing."""
    after_dot = False
    for token in selector:
        if after_dot and token.type == "ident" and token.value not in words:
            return False
        after_dot = token.type == "literal" and token.value == "."
    return True


if __name__ == "__main__":
    USED.write_text(made())
    print(f"{USED.relative_to(ROOT)}: {USED.stat().st_size >> 10} of {WHOLE.stat().st_size >> 10} KiB")
