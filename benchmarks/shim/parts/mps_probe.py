"""The offers of this driver's MPS: the answers of its control daemon, its manual, and the words in its programs.

Nothing is changed: the daemon is one of ours, and its commands only ask.
"""

import re
import shutil
import subprocess
from pathlib import Path

from benchmarks.shim.mps_groups import Groups
from benchmarks.shim.part import Part
from benchmarks.shim.report import Cell, Report
from benchmarks.shim.stage import Stage

TENANT, PERCENT = "probe", 50
QUESTIONS = (
    "help", "?", "nonsense", "version", "get_server_list", "get_default_active_thread_percentage",
    "get_default_device_pinned_mem_limit 0", "get_default_client_priority", "get_device_client_list", "ps", "lspart",
    "list_namespaces", "get_namespace_list",
)  # fmt: skip
OF_A_SERVER = (
    "get_server_status", "get_client_list", "get_active_thread_percentage", "get_device_pinned_mem_limit",
    "get_device_client_list",
)  # fmt: skip
OPTIONS = (["-h"], ["--help"], ["-v"], ["--version"], ["-p"], ["--nonsense"])
MANUAL = "nvidia-cuda-mps-control.1"
MANUALS = ("/usr/share/man/man1", "/usr/local/share/man/man1", "/usr/local/nvidia/share/man/man1", "/usr/local/nvidia")
ANSWER_SECONDS = 10
# Words of a command, variables, and sentences about newer features.
WORDS = re.compile(
    rb"CUDA_MPS_[A-Z_]+|CUDA_DEVICE_MAX_[A-Z_]+|(?:get|set|start|shutdown|terminate|list|create|destroy|add|rm|ls)[a-z]*_?"
    rb"(?:server|client|device|default|active|namespace|part|partition|mem|sm)[a-z_]*"
)
SENTENCE = re.compile(rb"[\x20-\x7e]{12,}")
ABOUT = re.compile(rb"namespace|partition|pinned|percentage|[Uu]sage|multiuser|static|memory limit|priority|option")


def measure(stage: Stage, report: Report) -> None:
    """Ask everything; report the answers."""
    groups = Groups(stage)
    try:
        groups.start(TENANT)
        client = stage.gpuload(None, "--kernel-us", "0", more=groups.variables(TENANT, PERCENT))
        client.wait(seconds=30)
        ask_daemon(report, groups)
        ask_programs(report, groups)
        read_manual(report)
        read_programs(report, groups)
    finally:
        report.raw("logs", groups.logs())
        stage.clear()
        groups.close()


def run(groups: Groups, command: list[str], words: str = "") -> str:
    """Run a program in the environment of our daemon's clients; return all that it prints, and its code."""
    environment = {**groups.environment(), **groups.variables(TENANT, 100)}
    try:
        done = subprocess.run(
            command, env=environment, input=words, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False,
            errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{type(error).__name__}: {error}"
    text = (done.stdout + done.stderr).strip()
    return f"{text} [{done.returncode}]" if done.returncode else text


def ask_daemon(report: Report, groups: Groups) -> None:
    servers = run(groups, [groups.program], "get_server_list\n").split()
    questions = [*QUESTIONS, *(f"{word} {servers[0]}" for word in OF_A_SERVER if servers)]
    answers = {question: run(groups, [groups.program], f"{question}\n") for question in questions}
    report.raw("answers", answers)
    report.table("What the control daemon answers", [row("command", *pair) for pair in answers.items()])


def ask_programs(report: Report, groups: Groups) -> None:
    server = str(Path(groups.program).with_name("nvidia-cuda-mps-server"))
    found = {f"nvidia-cuda-mps-control {' '.join(one)}": run(groups, [groups.program, *one]) for one in OPTIONS}
    found["nvidia-cuda-mps-server -h"] = run(groups, [server, "-h"])
    report.raw("options", found)
    report.table("What the programs print", [row("options", *pair) for pair in found.items()])


def read_manual(report: Report) -> None:
    """Report the manual page, if the machine has one."""
    for directory in MANUALS:
        for path in sorted(Path(directory).rglob(f"{MANUAL}*")) if Path(directory).is_dir() else ():
            reader = ["man", "-l", str(path)] if shutil.which("man") else ["zcat", "-f", str(path)]
            text = subprocess.run(reader, capture_output=True, text=True, check=False, errors="replace").stdout
            report.raw(f"manual {path}", text)
            report.note(f"The manual {path}:\n\n```\n{text[:9000]}\n```")
            return
    report.note("The machine has no manual page of nvidia-cuda-mps-control.")


def read_programs(report: Report, groups: Groups) -> None:
    """Report commands, variables and sentences in the control daemon's program."""
    data = Path(groups.program).resolve().read_bytes()
    words = sorted({found.decode() for found in WORDS.findall(data)})
    texts = [found.decode() for found in SENTENCE.findall(data) if ABOUT.search(found)]
    report.raw("words", words)
    report.raw("texts", texts[:400])
    report.note("Words in its program: " + ", ".join(f"`{word}`" for word in words))
    report.note("Sentences in it:\n\n```\n" + "\n".join(texts[:120]) + "\n```")


def row(name: str, asked: str, answer: str) -> dict[str, Cell]:
    one_line = " ⏎ ".join(line.strip() for line in answer.splitlines() if line.strip())
    return {name: f"`{asked}`", "answer": one_line.replace("|", "/")[:700] or "–"}


PART = Part("mps-probe", "MPS: what this driver's daemon offers", measure, seconds=1.0)
