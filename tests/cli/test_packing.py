"""Packing a directory for a job."""

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from gpucloud_cli import packing
from gpucloud_cli.commands.jobs import read_repository
from gpucloud_cli.failures import Usage


def fill(root: Path) -> Path:
    for name in ("train.py", "data/a.csv", "data/big.bin", ".git/config", "__pycache__/x.pyc"):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return root


def names(root: Path, *excluded: str) -> list[str]:
    return [one.name for one in packing.find_files(root, excluded)]


def test_git_and_what_is_excluded_are_left_out(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / ".git").rename(tmp_path / "other")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/.git").mkdir()
    (tmp_path / "sub/.git/config").write_text("x")
    assert names(tmp_path, "other", "*.pyc") == ["data/a.csv", "data/big.bin", "train.py"]
    assert names(tmp_path, "other/", "__pycache__", "data/*") == ["train.py"]


def test_of_a_checkout_what_git_ignores_is_left_out(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    fill(tmp_path)
    (tmp_path / ".git/config").unlink()
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True)
    (tmp_path / ".gitignore").write_text("__pycache__\n*.bin\n")
    assert names(tmp_path) == [".gitignore", "data/a.csv", "train.py"]
    # A directory below the top of a checkout, and a tracked file that is gone.
    assert names(tmp_path / "data") == ["a.csv"]
    subprocess.run(["git", "-C", str(tmp_path), "add", "train.py"], check=True)
    (tmp_path / "train.py").unlink()
    assert names(tmp_path) == [".gitignore", "data/a.csv"]


def test_the_same_files_give_the_same_bytes_without_owners(tmp_path: Path) -> None:
    fill(tmp_path)
    (tmp_path / "link").symlink_to("train.py")
    os.mkfifo(tmp_path / "fifo")
    found = packing.find_files(tmp_path, [".git"])
    made = [io.BytesIO(), io.BytesIO()]
    for file in made:
        packing.pack(tmp_path, found, file)
    assert made[0].getvalue() == made[1].getvalue()
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(made[0].getvalue()))) as archive:
        members = {member.name: member for member in archive}
    assert sorted(members) == ["__pycache__/x.pyc", "data/a.csv", "data/big.bin", "link", "train.py"]
    assert members["link"].issym()
    assert {(member.uid, member.uname) for member in members.values()} == {(0, "")}


def test_too_many_bytes_are_refused_with_the_largest_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setattr(packing, "MOST_BYTES", 20)
    with pytest.raises(Usage, match=r"--exclude; the largest: __pycache__/x\.pyc"):
        packing.find_files(tmp_path, [".git"])
    for wrong in (tmp_path / "nowhere", tmp_path / "empty"):
        if wrong.name == "empty":
            wrong.mkdir()
        with pytest.raises(Usage, match="--dir"):
            packing.find_files(wrong, [])


def test_a_repository_is_an_address_and_perhaps_a_reference() -> None:
    url = "https://git.example.org/vision/train.git"
    assert read_repository(url) == {"git_url": url}
    assert read_repository(f"{url}@feature/x") == {"git_url": url, "git_ref": "feature/x"}
    assert read_repository("ssh://git@host/x@v1") == {"git_url": "ssh://git@host/x", "git_ref": "v1"}
    for wrong in ("git@github.com:x/y", "train", f"{url}@"):
        with pytest.raises(Usage, match="--git"):
            read_repository(wrong)
