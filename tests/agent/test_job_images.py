"""Runs in containers of a real engine: bounded, told and ended, whatever the image wants.

The image is made of this machine's own files: nothing is pulled.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent import job_images, wire
from agent.job_users import JobUsers
from agent.jobs import engine
from tests.agent import forked
from tests.agent.control import Control
from tests.agent.jobs import IS_ROOT, ME, Jobs, settings
from tests.agent.stage import GPULOAD, Stage, eventually

PODMAN = shutil.which("podman")
# Podman's own choice, crun, cannot use control groups of both versions together.
RUNC = shutil.which("runc")
OPTIONS = ["--network=none", *([f"--runtime={RUNC}"] if RUNC else [])]
MEMORY_MIB, DISK_MIB = 96, 24
MIB = 1 << 20
PROGRAMS = ("sh", "id", "sleep", "cat", "head", "env", "mount", "ls", "kill", "touch", "tr", "stty", "setsid")
real = pytest.mark.skipif(not (IS_ROOT and PODMAN), reason="needs root and podman: containers are started with it")


def _collect(root: Path) -> None:
    """Copy programs of this machine with their libraries, and accounts that give the tenant's user root's group."""
    found = [path for name in PROGRAMS if (path := shutil.which(name, path="/usr/bin:/bin"))]
    libraries = {
        library
        for program in (*found, str(GPULOAD))
        for library in re.findall(
            r"(/[^ ]+) \(0x", subprocess.run(["ldd", program], check=False, capture_output=True, text=True).stdout
        )
    }
    for path in (*found, *libraries):
        there = root / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), there)
    shutil.copy(GPULOAD, root / "usr/bin/gpuload")
    shutil.copy(root / "usr/bin/id", root / "usr/bin/id-as-root")
    (root / "usr/bin/id-as-root").chmod(0o4755)
    for name in ("tmp", "etc", "proc", "sys", "dev", "var/tmp", "open"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "open").chmod(0o777)
    (root / "etc/passwd").write_text(f"root:x:0:0::/root:/bin/sh\nme:x:{ME}:0::/:/bin/sh\n")
    (root / "etc/group").write_text("root:x:0:me\n")


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return an image that wants to be root, with a setuid program, a volume, and an entry point of its own."""
    assert PODMAN is not None
    root = tmp_path_factory.mktemp("image")
    _collect(root)
    name = f"localhost/gpucloud-test-{os.getpid()}:1"
    archive = root.with_suffix(".tar")
    subprocess.run(["tar", "-C", root, "-cf", archive, "."], check=True)
    wants = ("USER root", "VOLUME /volume", 'ENTRYPOINT ["/none"]', "LABEL gpucloud.io/runs=/x", "ENV FROM=image")
    changes = [word for want in wants for word in ("--change", want)]
    subprocess.run([PODMAN, "import", *changes, archive, name], check=True, capture_output=True)
    try:
        engine.call(
            [PODMAN],
            "run",
            "--rm",
            *OPTIONS,
            "--ulimit=nofile=99:99",
            "--ulimit=nproc=99:99",
            "--entrypoint=",
            name,
            "id",
        )
    except engine.EngineError as error:
        pytest.skip(f"podman starts no containers here: {error}")
    else:
        yield name
    finally:
        subprocess.run([PODMAN, "rmi", "--force", name], check=False, capture_output=True)


@pytest.fixture
async def jobs(run_dir: Path, control: Control) -> AsyncIterator[Jobs]:
    """Return the runs of an agent with an engine, which gives each little memory and disk."""
    root = run_dir / "machine"
    root.mkdir()
    stage = Stage(root, run_dir, control, agents=forked.server())
    stage.node_file.chmod(0o666)
    stage.start(**more_settings(stage))
    link = await stage.control.connection()
    hello = await link.expect(wire.Hello)
    assert hello.images is True
    stage.gpus = [gpu.uuid for gpu in hello.gpus]
    it = Jobs(stage, link)
    yield it
    await it.close()
    stage.close()
    assert not found_containers(it)


def more_settings(stage: Stage) -> dict[str, Any]:
    return settings(stage) | {
        "GPUCLOUD_JOBS_ENGINE": PODMAN or "",
        "GPUCLOUD_JOBS_IMAGES": "localhost, 127.0.0.1:9",
        "GPUCLOUD_JOBS_ENGINE_OPTIONS": " ".join(OPTIONS),
        "GPUCLOUD_JOBS_MEMORY_MIB": str(MEMORY_MIB),
        "GPUCLOUD_JOBS_DISK_MIB": str(DISK_MIB),
    }


def found_containers(jobs: Jobs) -> str:
    assert PODMAN is not None
    return engine.call([PODMAN], "ps", "-a", "--filter", f"label={engine.LABEL}={jobs.root}", "--format", "{{.Names}}")


@real
async def test_a_program_runs_in_its_image_and_its_digest_is_known(jobs: Jobs, image: str) -> None:
    words = "id; pwd; echo $HOME $TMPDIR $FROM $MINE $GPUCLOUD_CLAIM_DIR; touch $HOME/a /tmp/b; exit 3"
    uid = await jobs.want("sh", "-c", words, image=image, environment={"MINE": " a = 'b' # c "})
    ended = await jobs.reach(uid, "ended")
    said = (await jobs.output(uid)).splitlines()
    assert (ended.exit_code, ended.reason) == (3, None), said
    # The image's own accounts give it no group, whatever they say.
    assert re.fullmatch(rf"uid={ME}(\(me\))? gid={ME}(\(\w+\))? groups={ME}(\(\w+\))?", said[0])
    home = str(jobs.directory(uid) / "home")
    assert said[1:] == [home, f"{home} /tmp image a = 'b' # c {jobs.stage.claim_dir(jobs.claim)}"]
    assert (jobs.directory(uid) / "home/a").stat().st_uid == (jobs.directory(uid) / "tmp/b").stat().st_uid == ME
    assert re.fullmatch(r"localhost/gpucloud-test-\d+@sha256:[0-9a-f]{64}", str(ended.image))
    missing = await jobs.want("no-such-program", image=image)
    assert (await jobs.reach(missing, "ended")).exit_code == 127


@real
async def test_its_gpu_programs_are_limited(jobs: Jobs, image: str) -> None:
    uid = await jobs.want("gpuload", "--memory", "1GiB", image=image)
    await jobs.reach(uid, "running")
    usage = await jobs.link.expect(wire.Usage, lambda frame: any(one.processes for one in frame.assignments))
    assert usage.assignments[0].memory_limit_bytes == jobs.claim.memory_bytes
    await jobs.change(uid, stop=True)
    assert (await jobs.reach(uid, "ended")).reason == "stopped"
    # More than its claim has.
    greedy = await jobs.want("gpuload", "--memory", "23GiB", "--seconds", "1", image=image)
    assert "CUDA_ERROR_OUT_OF_MEMORY" in await jobs.output(greedy)


@real
async def test_an_image_that_wants_root_gets_nothing(jobs: Jobs, image: str) -> None:
    marker = Path(f"/etc/gpucloud-test-{os.getpid()}")
    words = f"""
        id-as-root -u
        cat /proc/self/status
        touch {marker} && echo wrote-etc
        touch /open/a && echo wrote-layer
        touch {jobs.stage.claim_dir(jobs.claim)}/x && echo wrote-claim
        mount -t tmpfs none /open && echo mounted
        kill -9 {os.getpid()} && echo killed
        cat /proc/{os.getpid()}/environ && echo read
        cat /etc/shadow && echo read
        touch /volume/x; ls /proc | head -30; cat /proc/mounts
    """
    uid = await jobs.want("sh", "-c", words, image=image)
    await jobs.reach(uid, "ended")
    said = await jobs.output(uid)
    assert said.splitlines()[0] == str(ME)
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert line in said
    for bad in ("wrote-", "mounted", "killed\n", "\nread\n"):
        assert bad not in said
    assert marker.name not in os.listdir("/etc")  # noqa: PTH208
    # What the image calls a volume is memory; else it would be a directory of the machine that nobody measures.
    assert re.search(r"^tmpfs /volume tmpfs", said, re.MULTILINE)
    # Of the machine it sees its own directories, and the claim's files.
    mine = {
        line.split()[1] for line in said.splitlines() if re.match(r"\S+ /\S* (ext4|xfs|btrfs|overlay|tmpfs) rw", line)
    }
    directory = str(jobs.directory(uid))
    allowed = {"/tmp", "/var/tmp", "/volume", "/run", f"{directory}/home", str(jobs.stage.node_file)}  # noqa: S108 - of the container
    allowed |= {str(jobs.stage.claim_dir(jobs.claim) / "usage")}
    assert {one for one in mine if not one.startswith(("/dev", "/sys", "/proc"))} <= allowed


@real
async def test_hostile_programs_are_bounded_told_and_ended(jobs: Jobs, image: str) -> None:
    take = "x=$(head -c 200M /dev/zero | tr '\\0' x); echo kept"
    for command in (
        f"({take}); sleep 1; exit 1",
        take,
        "for i in 1 2 3 4 5 6 7 8 9; do head -c 20M /dev/zero >/volume/$i || exit 1; done",
    ):
        memory = await jobs.want("sh", "-c", command, image=image)
        assert "host memory" in str((await jobs.reach(memory, "ended")).reason), command
    fill = "i=0; while :; do head -c 1M /dev/zero >/var/tmp/part-$i; i=$((i+1)); sleep 0.05; done"
    disk = await jobs.want("sh", "-c", fill, image=image)
    assert (await jobs.reach(disk, "ended")).reason == f"disk: more than {DISK_MIB} MiB"
    bomb = await jobs.want("sh", "-c", "f() { f | f & }; f; sleep 60", image=image, seconds=3)
    begun = time.monotonic()
    # Whichever bound it meets first.
    assert str((await jobs.reach(bomb, "ended")).reason).startswith(("time limit of 3 s", "host memory"))
    assert time.monotonic() - begun < 30
    assert not _of_run(bomb)
    flood = await jobs.want("sh", "-c", "head -c 64M /dev/zero; echo the end", image=image, output_bytes=1 << 20)
    ended = await jobs.reach(flood, "ended")
    assert ended.output_bytes <= MIB < ended.dropped_bytes
    assert (await jobs.output(flood)).endswith("the end\n")


def _of_run(uid: str) -> list[str]:
    """Return the processes of the run's container, by their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdecimal() and f"GPUCLOUD_RUN={uid}".encode() in (entry / "environ").read_bytes():
                found.append(entry.name)
    return found


@real
@pytest.mark.parametrize(
    "killed", ["agent", "keeper", "client", pytest.param("conmon", marks=pytest.mark.long), "machine"]
)
async def test_what_is_killed_leaves_no_container(jobs: Jobs, image: str, killed: str) -> None:
    uid = await jobs.want("sh", "-c", "echo begun; sleep 2; echo more; sleep 60", image=image)
    await eventually(lambda: b"begun" in jobs.stored.get(uid, b""))
    name = engine.name_of(uid)
    assert name in found_containers(jobs)
    assert _of_run(uid)
    if killed == "agent":
        await jobs.stage.kill()
        await jobs.start_again(**more_settings(jobs.stage))
        await jobs.send()
        await eventually(lambda: b"more" in jobs.stored.get(uid, b""))
        await jobs.change(uid, stop=True)
        assert (await jobs.reach(uid, "ended")).reason == "stopped"
    elif killed == "machine":
        # Its processes end, and a container that has ended stays: as after a start, the agent finds it by its label.
        await jobs.stage.kill()
        for pid in jobs.keepers():
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(jobs.directory(uid))
        jobs.runs.clear()
        await jobs.start_again(**more_settings(jobs.stage))
        await jobs.send()
    else:
        found = jobs.keepers() if killed == "keeper" else _pids_of(name, killed)
        assert found
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        ended = await jobs.reach(uid, "ended")
        assert ended.reason is not None
        assert killed != "keeper" or ended.reason.startswith("lost")
    await eventually(lambda: not found_containers(jobs), seconds=20)
    assert not _of_run(uid)


def _pids_of(name: str, program: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes()
            wanted = b"conmon" if program == "conmon" else b"\0run\0"
            if entry.name.isdecimal() and name.encode() in line and wanted in line:
                found.append(int(entry.name))
    return found


@real
async def test_an_image_that_cannot_be_pulled_is_refused_in_words(jobs: Jobs) -> None:
    # Nothing listens there.
    uid = await jobs.want("true", image="127.0.0.1:9/team/absent:1")
    ended = await jobs.reach(uid, "ended")
    assert ended.reason == "image 127.0.0.1:9/team/absent:1 could not be pulled: the output says why"
    assert "refused" in await jobs.output(uid)
    other = await jobs.want("true", image="docker.io/library/debian:12")
    refused = await jobs.reach(other, "refused")
    assert refused.reason is not None
    assert "does not run docker.io/library/debian:12: its operator allows localhost" in refused.reason
    lines = await jobs.want("true", image="localhost/a:1", environment={"TEXT": "a\nb"})
    assert "TEXT has several lines" in str((await jobs.reach(lines, "refused")).reason)


@pytest.mark.parametrize(
    "image",
    [
        "dir:/etc", "docker-archive:/etc/passwd", "oci:/x/y", "-v=/:/host", "debian", "library/debian",
        "docker.io/../x/y",
        "docker.io/Upper", "docker.io/a:b:c", "docker.io/a\n", "docker.io/a b", "docker.io/a@sha256:1", "docker.io//a",
        "",
    ],
)  # fmt: skip
def test_what_is_no_image_with_a_registry_is_refused(image: str) -> None:
    assert not job_images.Engine("/usr/bin/podman", ("docker.io", "dir", "oci", "library")).allows(image)


def test_an_allowed_beginning_ends_at_a_name() -> None:
    allowed = job_images.Engine("/usr/bin/podman", ("docker.io", "registry.example.com:5000/ml"))
    for image in ("docker.io/library/debian:12", "registry.example.com:5000/ml/a/b@sha256:" + "0" * 64):
        assert allowed.allows(image)
    for image in (
        "docker.io.evil.com/a",
        "docker.iox/a",
        "registry.example.com:5000/mlx/a",
        "registry.example.com/ml/a",
    ):
        assert not allowed.allows(image)


def test_settings_name_what_is_missing() -> None:
    users, here = (
        JobUsers(61000, 61999),
        {"GPUCLOUD_JOBS_ENGINE": "/bin/true", "GPUCLOUD_JOBS_IMAGES": "docker.io/, a.b/c"},
    )
    found = job_images.parse(here, users)
    assert found is not None
    assert found.allowed == ("docker.io", "a.b/c")
    assert job_images.parse({}, users) is None
    for environment, who, words in (
        ({"GPUCLOUD_JOBS_ENGINE": "/no/such"}, users, "is no program"),
        ({"GPUCLOUD_JOBS_ENGINE": "/bin/true"}, users, "GPUCLOUD_JOBS_IMAGES"),
        (here, JobUsers(), "range of users"),
        (here, None, "range of users"),
    ):
        with pytest.raises(ValueError, match=words):
            job_images.parse(environment, who)
