"""`gpucloud-agent upgrade` at an address where something else answers."""

import argparse
import asyncio
from pathlib import Path

import pytest

from agent.install import command

OTHERS = {
    "a page": b"<html>It works!</html>",
    "a list": b"[]",
    "another object": b'{"status": "ok"}',
    "no path": b'{"path": ["/x"], "sha256": "y"}',
    "another server's path": b'{"path": "@elsewhere/x", "sha256": "y"}',
    "no text": b"\xff\xfe{",
}


async def upgraded(said: bytes, root: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code, where this is all that the server ever says."""

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
    assert await upgraded(said, tmp_path, monkeypatch) == command.REFUSED
    assert "is no gpucloud server; nothing was changed" in capsys.readouterr().err


async def test_what_speaks_no_http_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert await upgraded(b"SSH-2.0-OpenSSH_9.2\r\n", tmp_path, monkeypatch) == command.FAILED
    assert "speaks no HTTP" in capsys.readouterr().err
