"""Libraries that are hidden from REST framework at a start."""

import sys

import pytest

from gpucloud.fastpath.optional_libraries import hidden


def test_a_hidden_library_can_be_imported_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with hidden("colorsys"):
        with pytest.raises(ModuleNotFoundError):
            import colorsys
    import colorsys  # noqa: PLC0415 - what was hidden a moment ago

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0.0, 0.0, 0)


def test_a_loaded_library_is_not_hidden() -> None:
    with hidden("sys"):
        import sys as found  # noqa: PLC0415 - as a library would, within
    assert found is sys
