"""`gpucloud-agent upgrade` at an address of another service, and on a machine with other paths."""

import argparse
import asyncio
from pathlib import Path

import pytest

from agent.install import command, install, uninstall
from agent.install.layout import Layout, settings_of

OTHERS = {
    "a page": b"<html>It works!</html>",
    "a list": b"[]",
    "another object": b'{"status": "ok"}',
    "no path": b'{"path": ["/x"], "sha256": "y"}',
    "another server's path": b'{"path": "@elsewhere/x", "sha256": "y"}',
    "no text": b"\xff\xfe{",
}


async def run_upgrade(said: bytes, root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Return the exit code, if this is the server's only answer."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(said)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        monkeypatch.setenv("GPUCLOUD_SERVER", f"http://{host}:{port}")
        return await asyncio.to_thread(command._upgrade, argparse.Namespace(root=root, force=False))


@pytest.mark.parametrize("body", OTHERS.values(), ids=OTHERS.keys())
async def test_what_is_no_gpucloud_server_is_refused_in_words(
    body: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + body
    assert await run_upgrade(said, tmp_path, monkeypatch) == command.REFUSED
    assert "is not a gpucloud server; nothing was changed" in capsys.readouterr().err


async def test_what_speaks_no_http_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await run_upgrade(b"SSH-2.0-OpenSSH_9.2\r\n", tmp_path, monkeypatch) == command.FAILED
    assert "speaks no HTTP" in capsys.readouterr().err


def machine_with_paths(root: Path) -> tuple[install.Order, Path]:
    """Create a machine whose settings name its paths; a claim is there."""
    layout = Layout(root)
    (root / "etc").mkdir()
    (root / "srv/run/claims/one").mkdir(parents=True)
    layout.home.mkdir(parents=True)
    names = {"GPUCLOUD_RUN_DIR": root / "srv/run", "GPUCLOUD_STATE_DIR": root / "srv/state"}
    layout.settings.write_text("".join(f"{name}={path}\n" for name, path in names.items()))
    return install.Order(root, layout, "http://127.0.0.1:1", None, {}, force=False, patience_seconds=1), root / "srv"


def test_an_upgrade_leaves_the_machines_places_where_its_settings_have_them(tmp_path: Path) -> None:
    asked, place = machine_with_paths(tmp_path)
    install._settle(asked, asked.layout.settings.read_text())
    chosen = settings_of(asked.layout.settings.read_text())
    assert (chosen["GPUCLOUD_RUN_DIR"], chosen["GPUCLOUD_STATE_DIR"]) == (f"{place}/run", f"{place}/state")
    assert (asked.layout.run, asked.layout.state) == (place / "run", place / "state")
    asked.layout.settings.unlink()
    install._settle(asked, None)
    chosen = settings_of(asked.layout.settings.read_text())
    assert chosen["GPUCLOUD_RUN_DIR"] == str(tmp_path / "run/gpucloud")


def test_claims_keep_the_agent_wherever_the_settings_have_them(tmp_path: Path) -> None:
    asked, place = machine_with_paths(tmp_path)
    said: list[str] = []
    assert asked.layout.claims() == ["one"]
    with pytest.raises(uninstall.Refused, match="1 claims lie"):
        uninstall.uninstall(asked.layout, force=False, say=said.append)
    # A path that others may use too is not removed, and named.
    uninstall.uninstall(asked.layout, force=True, say=said.append)
    assert (place / "run/claims/one").is_dir()
    assert not asked.layout.home.exists()
    assert said[0].startswith(f"{place}/run stays")
