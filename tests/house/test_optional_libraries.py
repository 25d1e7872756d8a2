"""Libraries that are hidden from REST framework at a start."""

import importlib
import sys

import pytest

from gpucloud.fastpath.optional_libraries import hidden


def test_a_hidden_library_can_be_imported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with hidden("colorsys"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("colorsys")
    assert importlib.import_module("colorsys").rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_a_loaded_library_is_not_hidden() -> None:
    with hidden("sys"):
        assert importlib.import_module("sys") is sys
