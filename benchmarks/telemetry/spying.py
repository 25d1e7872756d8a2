"""Profile of the server by py-spy: samples of twenty seconds."""

import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

SECONDS = 20
KEPT = Path(tempfile.gettempdir()) / "gpucloud-bench-telemetry.spied"


def spy_on(pid: int) -> "subprocess.Popen[bytes]":
    """Start sampling into `KEPT`. Only the thread that holds the interpreter lock is counted."""
    program = Path(sys.executable).with_name("py-spy")
    options = ("--gil", "--format", "raw", "--duration", str(SECONDS), "--output", str(KEPT), "--pid", str(pid))
    return subprocess.Popen([program, "record", *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def print_profile(spy: "subprocess.Popen[bytes]") -> None:
    """Print the profile by function: with its callees, and without."""
    spy.wait(3 * SECONDS)
    own, whole = Counter[str](), Counter[str]()
    for line in KEPT.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        own[frames[-1]] += int(count)
        whole.update(dict.fromkeys(frames, int(count)))
    total = sum(own.values()) or 1
    for title, counted in (("with what it calls", whole), ("itself", own)):
        print(f"server, {title}:")
        for name, samples in counted.most_common(60):
            print(f"{100 * samples / total:6.1f} %  {name}")
