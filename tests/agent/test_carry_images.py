"""The way of images from one agent to another, and whose images are restored: without CRIU."""

import hashlib
import json
import os
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from agent import wire
from agent.carrying import criu, images, transfer
from agent.carrying.carrier import complete_map
from agent.carrying.images import Meta, Refused, User
from agent.carrying.transfer import Failed, Receiver

CLAIM = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
META = Meta(
    claim_uid=CLAIM, root=9, uid=1000, gid=1000, monotonic_ns=1, boottime_ns=1, machine_ns=1, gpus={0: "GPU-a"},
    saved={0: 5}, limits_gen=2, seen={9: ["GPU-a"]},
)  # fmt: skip


@pytest.fixture
def out(tmp_path: Path) -> Path:
    directory = tmp_path / "out"
    directory.mkdir()
    (directory / "core-1.img").write_bytes(b"small")
    (directory / "pages-1.img").write_bytes(os.urandom(3 << 20))
    (directory / "dump.log").write_text("stays")
    return directory


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[Receiver]:
    it = Receiver(CLAIM, tmp_path / "in", "127.0.0.1:0")
    yield it
    it.close()


def test_images_arrive_whole_and_the_ticket_is_used_up(out: Path, receiver: Receiver, tmp_path: Path) -> None:
    transfer.send(receiver.ticket, out, META)
    there = tmp_path / "in" / transfer.IMAGES
    assert {path.name: path.read_bytes() for path in there.iterdir()} == {
        path.name: path.read_bytes() for path in out.glob("*.img")
    }
    assert msgspec.json.decode((tmp_path / "in" / transfer.ARRIVED).read_bytes(), type=Meta) == META
    with pytest.raises(Failed):
        transfer.send(receiver.ticket, out, META)


def test_without_the_secret_nothing_is_taken_and_the_ticket_stays(
    out: Path, receiver: Receiver, tmp_path: Path
) -> None:
    with pytest.raises(Failed):
        transfer.send(msgspec.structs.replace(receiver.ticket, secret="x" * 43), out, META)
    assert not list((tmp_path / "in" / transfer.IMAGES).iterdir())
    transfer.send(receiver.ticket, out, META)


def test_another_machine_at_the_address_gets_nothing(out: Path, receiver: Receiver, tmp_path: Path) -> None:
    with pytest.raises(Failed, match="Another machine"):
        transfer.send(msgspec.structs.replace(receiver.ticket, fingerprint="0" * 64), out, META)
    assert not list((tmp_path / "in" / transfer.IMAGES).iterdir())


def test_another_claims_programs_are_refused(out: Path, receiver: Receiver) -> None:
    with pytest.raises(Failed, match="another claim"):
        transfer.send(receiver.ticket, out, msgspec.structs.replace(META, claim_uid=CLAIM[:-1] + "0"))


def test_more_than_the_disk_holds_is_refused(out: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "MARGIN_BYTES", 1 << 60)
    with pytest.raises(Failed, match="MiB are free"):
        transfer.send(receiver.ticket, out, META)


def test_a_ticket_that_is_too_old_takes_nothing(out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "LIFE_SECONDS", 0.0)
    late = Receiver(CLAIM, tmp_path / "late", "127.0.0.1:0")
    with pytest.raises(Failed):
        transfer.send(late.ticket, out, META)


def speak(ticket: wire.Ticket, header: dict[str, object], *parts: bytes) -> bytes:
    """Say the protocol's words by hand; return the last answer."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection((ticket.host, ticket.port), timeout=10) as connection,
        context.wrap_socket(connection) as stream,
        stream.makefile("rb") as answers,
    ):
        stream.sendall(json.dumps(header).encode() + b"\n")
        answer = answers.readline()
        for part in parts:
            stream.sendall(part)
        return answers.readline() if parts else answer


def header(ticket: wire.Ticket, *files: tuple[str, int]) -> dict[str, object]:
    return {"secret": ticket.secret, "meta": msgspec.to_builtins(META), "files": files}


@pytest.mark.parametrize("name", ["../core-1.img", "/etc/x.img", "arrived.json", ".img", "a.img\0"])
def test_other_names_than_an_images_are_refused(receiver: Receiver, tmp_path: Path, name: str) -> None:
    assert b"not the images" in speak(receiver.ticket, header(receiver.ticket, (name, 3)))
    assert not list((tmp_path / "in" / transfer.IMAGES).iterdir())


def test_a_wrong_checksum_or_a_broken_stream_has_not_arrived(receiver: Receiver, tmp_path: Path) -> None:
    said = speak(
        receiver.ticket,
        header(receiver.ticket, ("core-1.img", 3)),
        b"abc",
        hashlib.sha256().hexdigest().encode() + b"\n",
    )
    assert said == b""
    assert not (tmp_path / "in" / transfer.ARRIVED).exists()


# ---- Credentials ----


def field(number: int, value: int | bytes) -> bytes:
    def varint(number: int) -> bytes:
        out = b""
        while number > 0x7F:
            out, number = out + bytes([number & 0x7F | 0x80]), number >> 7
        return out + bytes([number])

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def core(uids: list[int], gids: list[int], *more: bytes, twice: bytes = b"") -> bytes:
    """Return a core image as CRIU writes it."""
    creds = b"".join(
        field(2 * at + 1, uid) + field(2 * at + 2, gid) for at, (uid, gid) in enumerate(zip(uids, gids, strict=True))
    )
    thread = field(1, 7) + field(10, creds + b"".join(more)) + twice
    entry = field(1, 1) + field(5, thread)
    return b"\0" * 8 + len(entry).to_bytes(4, "little") + entry


def test_the_user_of_images_is_found(tmp_path: Path) -> None:
    (tmp_path / "core-1.img").write_bytes(core([1000] * 4, [1001] * 4, field(14, 5), field(14, 3), field(12, 99)))
    (tmp_path / "core-2.img").write_bytes(core([1000] * 4, [1001] * 4, field(14, bytes([3, 5]))))
    assert images.find_user(tmp_path) == User(1000, 1001, (3, 5))


@pytest.mark.parametrize(
    "content",
    [
        core([1000, 0, 1000, 1000], [1000] * 4),
        core([1000, 1000, 0, 1000], [1000] * 4),
        core([1000] * 4, [1000, 1000, 1000, 0]),
        core([1000] * 4, [1000] * 4, field(10, 1 << 21)),
        core([1000] * 4, [1000] * 4, field(19, bytes([1]))),
        core([1000] * 4, [1000] * 4, field(1, 0)),
        core([1000] * 4, [1000] * 4, twice=field(10, core([0] * 4, [0] * 4)[20:])),
        core([1000] * 4, [1000] * 4)[:-3],
        core([1000] * 4, [1000] * 4) + b"\x05\0\0\0",
        b"",
        b"\0" * 8,
    ],
)  # fmt: skip
def test_images_of_more_than_one_user_or_with_roots_rights_are_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "core-1.img").write_bytes(content)
    with pytest.raises(Refused):
        images.find_user(tmp_path)


def test_two_processes_of_two_users_are_refused(tmp_path: Path) -> None:
    (tmp_path / "core-1.img").write_bytes(core([1000] * 4, [1000] * 4))
    (tmp_path / "core-2.img").write_bytes(core([1001] * 4, [1000] * 4))
    with pytest.raises(Refused, match="2 different users"):
        images.find_user(tmp_path)


def test_groups_of_which_the_user_is_no_member_here_are_refused() -> None:
    assert criu.local_user(54321, 54321, ()) == User(54321, 54321, ())
    with pytest.raises(Refused, match="root"):
        criu.local_user(54321, 54321, (0,))
    with pytest.raises(Refused):
        criu.local_user(54321, 0, ())


def test_a_map_names_every_gpu_of_both_nodes_once() -> None:
    assert complete_map({"a": "y"}, ["a", "b"], ["x", "y"]) == [("a", "y"), ("b", "x")]
    assert complete_map({}, ["a"], ["x"]) == [("a", "x")]
