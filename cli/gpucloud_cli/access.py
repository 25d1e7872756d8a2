"""The server's address and the token: from flags, then the environment, then the config file.

The config file contains a token, so only its owner may read it. The token belongs to one server: with another address
it is not used, or `--url` would send it to a stranger.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from gpucloud_cli.failures import Failure, Usage


class NotSignedIn(Failure):
    """No token is configured."""

    exit = 4


@dataclass(frozen=True)
class Access:
    """A server's address and a token for it."""

    url: str
    token: str


def config_path(environment: Mapping[str, str]) -> Path:
    """Return `$GPUCLOUD_CONFIG`, else `gpucloud/config.json` in the user's configuration directory."""
    if named := environment.get("GPUCLOUD_CONFIG"):
        return Path(named)
    base = environment.get("XDG_CONFIG_HOME") or Path(environment.get("HOME", "~")).expanduser() / ".config"
    return Path(base) / "gpucloud" / "config.json"


def resolve(*, url: str | None, token_file: str | None, environment: Mapping[str, str]) -> Access:
    """Return the address and the token to use.

    Raises Usage, NotSignedIn, or Failure for a config file that others can read.
    """
    path = config_path(environment)
    saved = read(path)
    address = check_url(url or environment.get("GPUCLOUD_URL") or saved.get("url") or "")
    token = _token(token_file, environment)
    if token is None and saved.get("token"):
        if saved.get("url") != address:
            raise NotSignedIn(
                f"The token in {path} is for {saved.get('url')}, not for {address}: run `gpucloud login`."
            )
        token = saved["token"]
    if not token:
        raise NotSignedIn("There is no token: run `gpucloud login`, or set GPUCLOUD_TOKEN or GPUCLOUD_TOKEN_FILE.")
    return Access(address, token)


def check_url(text: str) -> str:
    """Return an address without its trailing slash.

    Raises Usage.
    """
    if not text:
        raise Usage("Which server? Set GPUCLOUD_URL, give --url, or run `gpucloud login`.")
    if not text.startswith(("http://", "https://")):
        raise Usage(f"{text} is not an address like https://gpucloud.example.org.")
    try:
        parts = urlsplit(text)
        usable = bool(parts.hostname) and parts.port != 0 and text.isprintable() and " " not in text
    except ValueError:
        usable = False
    if not usable:
        raise Usage(f"{text!r} is not an address like https://gpucloud.example.org.")
    return text.rstrip("/")


def check_token(text: str) -> str:
    """Return a token without surrounding spaces.

    Raises Usage for characters that an HTTP header cannot carry.
    """
    token = text.strip()
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise Usage("This is no token: one is a single line like gpc_<key>.<secret>.")
    return token


def read(path: Path) -> dict[str, str]:
    """Read the config file; empty if there is none.

    Raises Failure if others can read it, or it is malformed.
    """
    try:
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != os.getuid() or stat.S_IMODE(facts.st_mode) & 0o077:
                raise Failure(f"{path} holds a token and others can read it: chmod 600 {path} (and make a new token).")
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Failure(f"{path} cannot be used: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(value, str) for value in content.values()):
        raise Failure(f"{path} is not a config file of gpucloud's.")
    return content


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, atomically.

    Raises Failure.
    """
    fresh = path.with_name(f".{path.name}.new")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh.unlink(missing_ok=True)
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise Failure(f"{path} cannot be written: {error.strerror}") from error


def _token(token_file: str | None, environment: Mapping[str, str]) -> str | None:
    if token_file is None and (token := environment.get("GPUCLOUD_TOKEN")):
        return check_token(token)
    path = token_file or environment.get("GPUCLOUD_TOKEN_FILE")
    if not path:
        return None
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise Usage(f"{path}: no token could be read: {error}") from error
    return check_token(text)
