"""The documentation's pictures: complete, and small enough for every clone."""

import re

import pytest

from tests.gallery.__main__ import DOCS, OUT, THEMES, WIDTHS
from tests.platform import ROOT

MOST_BYTES = 4 * 1024 * 1024
PICTURE = re.compile(r"\"screenshots/([\w-]+\.webp)")


def test_every_page_of_the_gallery_is_there_in_both_themes_and_widths() -> None:
    named = set(PICTURE.findall((DOCS / "screenshots.md").read_text()))
    pages = {name.rsplit("-", 2)[0] for name in named}
    wanted = {f"{page}-{theme}-{width}.webp" for page in pages for theme in THEMES for width in WIDTHS}
    assert len(pages) > 20
    assert wanted == {file.name for file in OUT.iterdir()}
    assert named <= wanted
    assert sum(file.stat().st_size for file in OUT.iterdir()) <= MOST_BYTES


@pytest.mark.parametrize("theme", THEMES)
def test_the_readme_opens_with_one(theme: str) -> None:
    opening = (ROOT / "README.md").read_text().partition("## ")[0]
    assert f"docs/screenshots/claim-{theme}-1440.webp" in opening
