"""Metrics sent on by a real Prometheus in agent mode to a second one that takes remote write, with `agent.yml`."""

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import urlopen

import pytest
import yaml

from tests.cast import Cast, ask, give_plenty
from tests.ports import free_port

PROGRAM = shutil.which("prometheus")
EXAMPLE = Path(__file__).resolve().parents[2] / "deploy" / "prometheus" / "agent.yml"
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no prometheus (Debian's package prometheus)"),
    pytest.mark.django_db(transaction=True),
]


@contextmanager
def prometheus(place: Path, configuration: Any, port: int, *options: str) -> Iterator[str]:
    """Start a Prometheus; yield its address once it is ready."""
    place.mkdir(exist_ok=True)
    (place / "prometheus.yml").write_text(yaml.safe_dump(configuration))
    assert PROGRAM is not None
    command = [PROGRAM, f"--config.file={place}/prometheus.yml", f"--web.listen-address=127.0.0.1:{port}", *options]
    address = f"http://127.0.0.1:{port}"
    with (place / "log").open("a") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            until(lambda: fetch(f"{address}/-/ready") is not None, place / "log")
            yield address
        finally:
            process.terminate()
            process.wait()


@contextmanager
def store(place: Path, port: int) -> Iterator[str]:
    """Start the Prometheus that takes remote write; it scrapes nothing itself."""
    options = ["--web.enable-remote-write-receiver", f"--storage.tsdb.path={place}/data"]
    with prometheus(place, {}, port, *options) as address:
        yield address


def fetch(url: str) -> bytes | None:
    try:
        with urlopen(url, timeout=5) as answer:  # noqa: S310 - loopback
            body: bytes = answer.read()
            return body
    except (URLError, ConnectionError):
        return None


def until(is_so: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, log.read_text()[-2000:]
        time.sleep(0.1)


def values(store: str, query: str) -> list[tuple[float, str]]:
    """Return the samples of the query's only series, with their times; none if there is no series."""
    answer = fetch(f"{store}/api/v1/query?{urlencode({'query': query})}")
    found = json.loads(answer or b'{"data": {"result": []}}')["data"]["result"]
    return found[0]["values"] if found else []


def configured(server: str, token: str, written_to: int, place: Path) -> Any:
    """Return the example with this test's addresses and files, and a scrape a second."""
    found = yaml.safe_load(EXAMPLE.read_text())
    (place / "token").write_text(token)
    found["global"]["scrape_interval"] = "1s"
    found["remote_write"] = [{"url": f"http://127.0.0.1:{written_to}/api/v1/write"}]
    platform = next(job for job in found["scrape_configs"] if job["job_name"] == "gpucloud")
    platform["authorization"]["credentials_file"] = str(place / "token")
    platform["static_configs"] = [{"targets": [urlsplit(server).netloc]}]
    return found | {"scrape_configs": [platform]}


def test_metrics_reach_a_store_by_remote_write_also_those_from_while_it_was_away(
    real_cast: Cast, live_server: Any, tmp_path: Path
) -> None:
    give_plenty(real_cast.acme)
    ask(real_cast)
    port = free_port()
    assert real_cast.olga.token is not None
    configuration = configured(live_server.url, real_cast.olga.token, port, tmp_path)
    options = ["--enable-feature=agent", f"--storage.agent.path={tmp_path}/agent/data"]
    waiting = 'gpucloud_queue_claims{pool="default",state="pending",installation="main"}'
    with prometheus(tmp_path / "agent", configuration, free_port(), *options):
        log = tmp_path / "agent" / "log"
        with store(tmp_path / "store", port) as address:
            until(lambda: any(value == "1" for _, value in values(address, f"{waiting}[5m]")), log)
        away_at = time.time()
        time.sleep(4)
        back_at = time.time()
        with store(tmp_path / "store", port) as address:

            def has_those_from_between() -> bool:
                times = [at for at, _ in values(address, f"{waiting}[5m]")]
                return len([at for at in times if away_at + 0.5 < at < back_at - 0.5]) >= 2

            until(has_those_from_between, log)
