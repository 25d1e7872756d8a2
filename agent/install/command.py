"""The commands of the bundle and of `gpucloud-agent`: install, upgrade, uninstall."""

import argparse
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from agent.install import install, uninstall, unpack
from agent.install.layout import Layout

MAX_BUNDLE_BYTES = 64 << 20
TIMEOUT_SECONDS = 60.0
FAILED, USAGE, REFUSED = 1, 2, 3


def main(bundle: str) -> int:
    """Run `python3 gpucloud-agent.pyz …`; return the exit code."""
    parser = argparse.ArgumentParser(prog="gpucloud-agent.pyz", description="Installer of the gpucloud agent.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    add_install(
        commands.add_parser("install", help="install the agent on this machine, or replace it with this version")
    )
    add_uninstall(commands.add_parser("uninstall", help="remove the agent from this machine"))
    options = parser.parse_args()
    options.bundle = Path(bundle)
    code: int = options.call(options)
    return code


def add_install(parser: argparse.ArgumentParser) -> None:
    """Add the options of `install`."""
    parser.add_argument("--server", metavar="URL", help="address of the control plane")
    parser.add_argument("--set", metavar="NAME=VALUE", action="append", default=[], type=_setting, help="a setting")
    parser.add_argument("--force", action="store_true", help="install even if the self-check fails or pages change")
    parser.add_argument(
        "--patience", metavar="SECONDS", type=float, default=60.0, help="longest wait for the agent to start (60)"
    )
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.set_defaults(call=_install)


def add_uninstall(parser: argparse.ArgumentParser) -> None:
    """Add the options of `uninstall`."""
    parser.add_argument("--force", action="store_true", help="remove it even if claims lie on this machine")
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.set_defaults(call=_uninstall)


def add_upgrade(parser: argparse.ArgumentParser) -> None:
    """Add the options of `upgrade`."""
    parser.add_argument("--force", action="store_true", help="install even if the self-check fails or pages change")
    parser.add_argument("--root", metavar="DIR", type=Path, default=Path("/"), help=argparse.SUPPRESS)
    parser.set_defaults(call=_upgrade)


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.startswith("GPUCLOUD_") or "\n" in value:
        raise argparse.ArgumentTypeError(f"{text!r} is not GPUCLOUD_…=VALUE")
    return name, value


def _install(options: argparse.Namespace) -> int:
    token = os.environ.pop("GPUCLOUD_ENROL_TOKEN", None)
    layout = Layout(options.root.absolute())
    order = install.Order(
        bundle=options.bundle,
        layout=layout,
        server=options.server,
        token=token,
        settings=dict(options.set),
        force=options.force,
        patience_seconds=options.patience,
    )
    return _answer(options, lambda: install.install(order, _say))


def _uninstall(options: argparse.Namespace) -> int:
    layout = Layout(options.root.absolute())
    return _answer(options, lambda: uninstall.uninstall(layout, force=options.force, say=_say))


def _upgrade(options: argparse.Namespace) -> int:
    """Fetch the server's bundle, check its digest against the server's, and let it install itself."""
    server = os.environ.get("GPUCLOUD_SERVER", "").rstrip("/")

    def fetch() -> None:
        if not server.startswith(("http://", "https://")):
            raise install.Refused("GPUCLOUD_SERVER names no server.")
        path, digest = _find_bundle(server)
        content = _get(f"{server}{path}")
        if hashlib.sha256(content).hexdigest() != digest:
            raise install.Refused("The bundle does not match the server's digest; nothing was changed.")
        with tempfile.NamedTemporaryFile(suffix=".pyz") as file:
            file.write(content)
            file.flush()
            more = ["--force"] if options.force else []
            words = [sys.executable, "-I", file.name, "install", "--root", str(options.root), *more]
            if code := os.spawnv(os.P_WAIT, sys.executable, words):  # noqa: S606 - what was just checked
                raise SystemExit(code)

    return _answer(options, fetch)


def _find_bundle(server: str) -> tuple[str, str]:
    """Return the path of the server's bundle and its digest. Raises Refused, OSError."""
    text = _get(f"{server}/agent/bundle.json")
    try:
        manifest = json.loads(text)
        path, digest = manifest["path"], manifest["sha256"]
    except (ValueError, LookupError, TypeError):
        path = digest = None
    if not isinstance(digest, str) or not isinstance(path, str) or not path.startswith("/"):
        raise install.Refused(f"The server at {server} is not a gpucloud server; nothing was changed.")
    return path, digest


def _get(url: str) -> bytes:
    # Half of the imports of `agent exec`, which begins every program: it loads this module for its list of commands.
    import urllib.request  # noqa: PLC0415
    from http.client import HTTPException  # noqa: PLC0415

    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as answer:  # noqa: S310 - http or https, see above
            content: bytes = answer.read(MAX_BUNDLE_BYTES)
    except HTTPException as error:
        raise OSError(f"What answers at {url} speaks no HTTP: {error!r}") from error
    return content


def _answer(options: argparse.Namespace, act: Callable[[], None]) -> int:
    if options.root == Path("/") and os.getuid() != 0:
        return _fail("This writes to /opt and /etc: run it as root.", USAGE)
    try:
        act()
    except (install.Refused, uninstall.Refused, unpack.Unfit) as error:
        return _fail(error, REFUSED)
    except OSError as error:
        return _fail(error, FAILED)
    return 0


def _say(words: str) -> None:
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


def _fail(words: object, code: int) -> int:
    sys.stderr.write(f"gpucloud: {words}\n")
    return code
