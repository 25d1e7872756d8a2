"""The table of clicks and the tests that count them name the same paths."""

import re

from tests.browser.clicks import bounds
from tests.platform import ROOT


def test_each_published_path_is_walked_once() -> None:
    walked = re.findall(r"\.ends\(\"([^\"]+)\"\)", (ROOT / "tests" / "browser" / "test_clicks.py").read_text())
    assert sorted(walked) == sorted(bounds())
    assert len(bounds()) > 10
