"""`gpucloud run`: the claim is always released, and the exit code says how the command ended."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.commands import Shell, finish, live_claims
from tests.cli.middle import Middle
from tests.platform import ROOT, Platform, until
from tests.processes import alive

pytestmark = [pytest.mark.serial, pytest.mark.timeout(180)]

RUN = ("run", "--core", "10", "--memory", "1GiB")
JOB = ("job", *RUN)
GPULOAD = str(ROOT / "libvcuda" / "build" / "gpuload")
# Prints that it is up, then the signals that reach it, and ends with SIGTERM only.
LISTENER = """
import os, signal, time
for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
    signal.signal(number, lambda n, _: os.write(1, signal.Signals(n).name.encode() + b"\\n"))
os.write(1, b"up\\n")
while True:
    time.sleep(0.1)
"""


def released(platform: Platform, tenant: str) -> bool:
    return live_claims(platform, tenant) == []


def start(shell: Shell, *arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command; return it with its program once both run."""
    process = shell.start(*RUN, *arguments, "--", sys.executable, "-c", LISTENER, **options)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n", process.communicate()
    return process


def test_the_program_runs_under_its_limits_and_the_claim_is_released(
    max_: Shell, tenant: str, platform: Platform
) -> None:
    ended = max_.run(*RUN, "--limit", "60", "--name", "train", "--", GPULOAD, "--memory", "900MiB", "--seconds", "1")
    assert ended.code == 0, ended
    assert re.search(r"claim \S+ on sim-1/\d: core 10–60 %, 1024 MiB", ended.err)
    assert released(platform, tenant)
    (claim,) = platform.granted("GET", f"claims/?tenant={tenant}")["results"]
    assert (claim["name"], claim["core_limit"], claim["lease_seconds"]) == ("train", 60, 300)
    too_much = max_.run(*RUN, "--", GPULOAD, "--memory", "2GiB", "--seconds", "1")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in too_much.out


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("no-such-command",), 127),
        pytest.param(("sh", "-c", "kill -KILL $$"), 137, marks=pytest.mark.long),
        pytest.param(("/etc/passwd",), 126, marks=pytest.mark.long),
    ],
)
def test_the_exit_code_is_the_programs(
    max_: Shell, tenant: str, platform: Platform, program: tuple[str, ...], code: int
) -> None:
    assert max_.run(*RUN, "--", *program).code == code
    assert released(platform, tenant)


def test_the_program_gets_the_claim_and_none_of_the_secrets(max_: Shell) -> None:
    ended = max_.run(*RUN, "--", "env", MY_OWN="kept")
    told = dict(line.split("=", 1) for line in ended.out.splitlines() if "=" in line)
    assert {"GPUCLOUD_CLAIM", "LD_PRELOAD", "MY_OWN"} <= set(told)
    assert not {"GPUCLOUD_TOKEN", "GPUCLOUD_TOKEN_FILE", "GPUCLOUD_CLAIM_SECRET"} & set(told)


def test_what_the_program_reads_and_writes_is_its_own(max_: Shell) -> None:
    ended = max_.run(*RUN, "--", "tr", "a-z", "A-Z", stdin="hello --json\n")
    assert (ended.code, ended.out) == (0, "HELLO --JSON\n")
    assert all(line.startswith("gpucloud: ") for line in ended.err.splitlines())


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGQUIT, marks=pytest.mark.long)])
def test_a_signal_ends_the_program_and_the_claim(
    max_: Shell, tenant: str, platform: Platform, number: signal.Signals
) -> None:
    process = start(max_)
    process.send_signal(number)
    assert finish(process).code == 128 + number
    assert released(platform, tenant)


def test_signals_reach_the_program_and_it_decides(max_: Shell, tenant: str, platform: Platform) -> None:
    process = start(max_)
    assert process.stdout is not None
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        process.send_signal(number)
        assert process.stdout.readline() == f"{number.name}\n"
    assert len(live_claims(platform, tenant)) == 1
    process.send_signal(signal.SIGTERM)
    ended = finish(process)
    # Each came once.
    assert (ended.code, ended.out) == (143, "")
    assert released(platform, tenant)


def test_an_interrupt_ends_a_program_that_does_not_listen(max_: Shell, tenant: str, platform: Platform) -> None:
    process = max_.start(*RUN, "--", "sh", "-c", "echo up; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGINT)
    assert finish(process).code == 130
    assert released(platform, tenant)


@pytest.mark.long
def test_what_was_ignored_stays_ignored(max_: Shell, tenant: str, platform: Platform) -> None:
    line = ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *max_.line(*RUN, "--", "sh", "-c", "echo up; exec sleep 60")]
    process = subprocess.Popen(line, env=max_.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert finish(process).code == 143
    assert released(platform, tenant)


def test_a_killed_clients_claim_ends_with_its_lease(max_: Shell, tenant: str, platform: Platform) -> None:
    process = max_.start(*RUN, "--lease", "8s", "--", "sh", "-c", "echo $$; exec sleep 600")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    # The control: while the client lives, the lease is renewed.
    (claim,) = live_claims(platform, tenant)
    until(lambda: live_claims(platform, tenant)[0]["lease_until"] > claim["lease_until"], what="a renewal")
    process.kill()
    assert process.wait(10) == -signal.SIGKILL
    assert alive(child)
    until(lambda: released(platform, tenant), what="the lease to run out")
    assert not alive(child)
    for pipe in (process.stdout, process.stderr):
        assert pipe is not None
        pipe.close()
    rows = platform.granted("GET", f"audit/?tenant={tenant}&action=claim.release")["results"]
    assert [row["after"] for row in rows] == [{"why": "its lease of 8 s was not renewed"}]


@pytest.fixture
def no_quota(platform: Platform, tenant: str) -> None:
    """Fill the quota: nothing fits any more."""
    for row in platform.granted("GET", f"quotas/?tenant={tenant}")["results"]:
        platform.granted("PATCH", f"quotas/{row['id']}/", {"hard": 0}, If_Match=f'"{row["version"]}"')


@pytest.mark.usefixtures("no_quota")
def test_a_wait_that_runs_out_is_five(max_: Shell, tenant: str, platform: Platform) -> None:
    first = max_.data("claim", "create", "--core", "10", "--memory", "1GiB", "--when-over-quota", "wait")
    ended = max_.run(*RUN, "--wait", "2s", "--", "true")
    assert ended.code == 5
    # The last one, whoever else's claims wait.
    assert re.search(r"waiting: queued · place ([2-9]) of \1 in the queue", ended.err), ended.err
    assert max_.run("claim", "release", first["uid"]).code == 0
    assert "0 % of 0 % available" in ended.err
    assert released(platform, tenant)


@pytest.mark.usefixtures("no_quota")
def test_without_a_wait_over_quota_is_three(max_: Shell, tenant: str, platform: Platform) -> None:
    assert max_.run(*RUN, "--", "true").code == 3
    assert released(platform, tenant)


@pytest.mark.usefixtures("no_quota")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.long)]
)
def test_an_interrupted_wait_releases(
    max_: Shell, tenant: str, platform: Platform, number: signal.Signals, code: int
) -> None:
    process = max_.start(*RUN, "--wait", "5m", "--", "true")
    until(lambda: live_claims(platform, tenant), what="the claim")
    process.send_signal(number)
    assert finish(process).code == code
    assert released(platform, tenant)


def test_a_lost_server_leaves_the_program_alone_and_is_told(max_: Shell, tenant: str, platform: Platform) -> None:
    with Middle(platform.url) as middle:
        options = ("--release-timeout", "1s", "--lease", "5s", "--url", middle.url)
        process = max_.start(*RUN, *options, "--", "sh", "-c", "echo up; sleep 2; exit 9")
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        middle.cut()
        ended = finish(process)
    assert ended.code == 9
    assert "the lease could not be renewed" in ended.err
    assert re.search(r"claim (\S+) could not be released: .*\n`gpucloud claim release \1` does it by hand", ended.err)
    until(lambda: released(platform, tenant), what="the lease to run out")


def test_a_server_that_comes_back_gets_the_release(max_: Shell, tenant: str, platform: Platform) -> None:
    with Middle(platform.url) as middle:
        process = start(max_, "--url", middle.url)
        middle.cut()
        process.send_signal(signal.SIGTERM)
        time.sleep(1.5)
        middle.mend()
        ended = finish(process)
    assert ended.code == 143
    assert "cannot be released yet" in ended.err
    assert released(platform, tenant)


def test_a_lost_answer_makes_no_second_claim(max_: Shell, tenant: str, platform: Platform) -> None:
    with Middle(platform.url) as middle:
        middle.lose_answers = 1
        made = max_.run(
            "claim", "create", "--core", "10", "--memory", "1GiB", "--url", middle.url, "--json", GPUCLOUD_TENANT=tenant
        )
        assert middle.lose_answers == 0
    assert made.code == 0, made
    assert [row["uid"] for row in live_claims(platform, tenant)] == [made.data["uid"]]
    assert max_.run("claim", "release", made.data["uid"], "--wait", "20s").code == 0


@pytest.mark.long
def test_a_claim_that_somebody_else_releases_ends_the_program(max_: Shell, tenant: str, platform: Platform) -> None:
    process = max_.start(*RUN, "--lease", "10s", "--", "sh", "-c", "echo up; exec sleep 60")
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    (claim,) = live_claims(platform, tenant)
    platform.granted("DELETE", f"claims/{claim['uid']}/")
    ended = finish(process)
    assert ended.code == 143
    ends = ("has ended under the program: ", "is no longer held: ")
    assert any(f"claim {claim['uid']} {words}" in ended.err for words in ends)
    until(lambda: released(platform, tenant), what="the release")


@pytest.mark.long
def test_kept_claims_stay_and_others_can_enter_them(max_: Shell, tenant: str, platform: Platform) -> None:
    ended = max_.run(*RUN, "--keep", "--", "true")
    assert ended.code == 0
    (claim,) = live_claims(platform, tenant)
    assert (claim["state"], claim["lease_seconds"]) == ("active", None)
    assert max_.run("claim", "exec", claim["uid"], "--", "sh", "-c", "exit 6").code == 6
    assert max_.run("claim", "release", claim["uid"], "--wait", "20s").code == 0


class Terminal:
    """A terminal, and the command in it as a shell would start it."""

    def __init__(self, shell: Shell, *line: str) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execvpe(line[0], line, shell.environment)  # noqa: S606 - a shell would be one more process group
        self.said = ""

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def until(self, text: str, *, seconds: float = 30) -> None:
        deadline = time.monotonic() + seconds
        while text not in self.said:
            assert time.monotonic() < deadline, self.said
            self._read(0.2)

    def _read(self, seconds: float) -> bool:
        if select.select([self._end], [], [], seconds)[0]:
            try:
                data = os.read(self._end, 4096)
            except OSError:
                return False
            self.said += data.decode()
            return bool(data)
        return True

    def code(self) -> int:
        """Return its exit code, once it has ended."""
        while self._read(0.5):
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_reaches_the_program_once(max_: Shell, tenant: str, platform: Platform) -> None:
    terminal = Terminal(max_, *max_.line(*RUN, "--", sys.executable, "-c", LISTENER))
    terminal.until("up")
    terminal.type("\x03")
    terminal.until("SIGINT")
    # Two signals may arrive at once.
    terminal._read(0.5)
    assert terminal.said.count("SIGINT") == 1
    os.kill(terminal.pid, signal.SIGTERM)
    assert terminal.code() == 143
    assert released(platform, tenant)


@pytest.mark.long
def test_the_program_may_read_the_terminal(max_: Shell, tenant: str, platform: Platform) -> None:
    terminal = Terminal(max_, *max_.line(*RUN, "--", "sh", "-c", 'echo up; read line; echo "got $line"'))
    terminal.until("up")
    terminal.type("hello\n")
    terminal.until("got hello")
    assert terminal.code() == 0
    assert released(platform, tenant)


def test_ctrl_z_stops_both_and_fg_goes_on_with_both(max_: Shell, tenant: str, platform: Platform) -> None:
    script = Path(max_.home) / "session.sh"
    line = " ".join(max_.line(*RUN))
    script.write_text(
        f"set -m\n{line} -- sh -c 'echo up; read line; echo \"got $line\"'\n"
        'echo "stopped $?"\nfg >/dev/null\necho "ended $?"\n'
    )
    terminal = Terminal(max_, "bash", str(script))
    terminal.until("up")
    terminal.type("\x1a")
    terminal.until("stopped 14")
    terminal.type("hello\n")
    terminal.until("got hello")
    terminal.until("ended 0")
    assert terminal.code() == 0
    assert released(platform, tenant)


@pytest.mark.long
def test_in_a_pipeline_the_program_gets_the_terminal_when_it_reads(
    max_: Shell, tenant: str, platform: Platform
) -> None:
    line = " ".join(max_.line(*RUN))
    script = f"set -m; {line} -- sh -c 'echo up; read line; echo \"got $line\"' | cat; echo ended ${{PIPESTATUS[0]}}"
    terminal = Terminal(max_, "bash", "-c", script)
    terminal.until("up")
    terminal.type("hello\n")
    terminal.until("got hello")
    terminal.until("ended 0")
    assert terminal.code() == 0
    assert released(platform, tenant)


@pytest.mark.long
def test_ctrl_c_in_a_pipeline_reaches_the_program_once(max_: Shell, tenant: str, platform: Platform) -> None:
    line = " ".join(max_.line(*RUN))
    (max_.home / "listen.py").write_text(LISTENER)
    script = f"{line} -- {sys.executable} listen.py | (trap '' INT; cat)"
    terminal = Terminal(max_, "bash", "-c", f"cd {max_.home}; {script}")
    terminal.until("up")
    terminal.type("\x03")
    terminal.until("SIGINT")
    terminal._read(0.5)
    assert terminal.said.count("SIGINT") == 1
    (claim,) = live_claims(platform, tenant)
    platform.granted("DELETE", f"claims/{claim['uid']}/")
    terminal.code()
    until(lambda: released(platform, tenant), what="the release")


@pytest.mark.skipif(os.geteuid() == 0, reason="an agent of root runs jobs of other users only")
def test_a_job_whose_creation_is_interrupted_is_stopped(max_: Shell, tenant: str, platform: Platform) -> None:
    def jobs() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = platform.granted("GET", f"jobs/?tenant={tenant}")["results"]
        return rows

    with Middle(platform.url) as middle:
        middle.hold_answer_of = b"POST /api/v1/jobs/ "
        process = max_.start(*JOB, "--wait", "--stop-on-interrupt", "--url", middle.url, "--", "sleep", "60")
        until(jobs, what="the job")
        process.send_signal(signal.SIGTERM)
        middle.flowing.set()
        ended = finish(process)
    assert ended.code == 130, ended
    until(lambda: jobs()[0]["state"] == "stopped", what="the job's end")
