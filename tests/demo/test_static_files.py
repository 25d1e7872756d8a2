"""What browsers get besides pages: compressed, kept for good, and made once for each content."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from django.http import HttpResponse
from django.test import RequestFactory
from whitenoise.middleware import WhiteNoiseMiddleware

from deploy.demo.static import collected

STYLE = "vendor/tabler-1.6.1.min.css"


@pytest.fixture(scope="module")
def place() -> Path:
    """Where they lie."""
    return collected()


def names(place: Path) -> dict[str, str]:
    found: dict[str, str] = json.loads((place / "staticfiles.json").read_text())["paths"]
    return found


def test_what_is_there_for_this_content_is_not_made_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("it was made again")

    monkeypatch.setattr(subprocess, "run", never)
    assert collected() == place


def test_modules_name_each_other_by_their_content(place: Path) -> None:
    known = names(place)
    page = (place / known["js/page.js"]).read_text()
    imported = re.findall(r'(?:from |import\()"\./([^"]+)"', page)
    wanted = ("js/live.js", "js/charts.js", "js/words.js")
    assert sorted(imported) == sorted(known[name].removeprefix("js/") for name in wanted)


def test_a_file_is_sent_compressed_and_may_be_kept_for_good(place: Path, settings: Any) -> None:
    settings.STATIC_ROOT = str(place)
    settings.WHITENOISE_USE_FINDERS = False
    settings.STORAGES = settings.STORAGES | {"staticfiles": {"BACKEND": "gpucloud.web.static.Named"}}
    door = WhiteNoiseMiddleware(lambda _: HttpResponse(status=404))
    url = f"/static/{names(place)[STYLE]}"
    answer = door(RequestFactory().get(url, headers={"Accept-Encoding": "gzip"}))
    assert answer.status_code == 200
    assert answer["Content-Encoding"] == "gzip"
    assert int(answer["Content-Length"]) < 100_000
    assert "immutable" in answer["Cache-Control"]
    answer.file_to_stream.close()
    # The control: a name without its content's digest is not there, so nobody keeps what may change.
    assert door(RequestFactory().get(f"/static/{STYLE}")).status_code == 404
