"""`job run|logs|stop|exec`."""

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from gpucloud_cli import output, terminal
from gpucloud_cli.addressing import find_array, find_awaited, find_job
from gpucloud_cli.api import Api
from gpucloud_cli.commands.arrays import await_all
from gpucloud_cli.failures import Exit, Unreachable, Usage
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import (
    Invocation,
    body,
    connection_options,
    field_options,
    output_options,
    pass_invocation,
    tenant_of,
)
from gpucloud_cli.packing import send_directory

OF_COMMAND = frozenset(
    {"command", "environment", "after", "after_any", "files", "git_url", "git_ref", "kind", "idle_minutes"}
)
FIELDS = tuple(
    replace(field, required=False) for field in body_fields("POST jobs/", "job") if field.name not in OF_COMMAND
)
OVER = ("succeeded", "failed", "stopped")
# A follower asks again so often; a job that waits for GPUs is looked at less often.
# The server answers as soon as there is output.
FOLLOW_SECONDS, WAITING_SECONDS = 15, 2.0
INTERRUPTS = {signal.SIGINT, signal.SIGTERM}
# Arguments after the command belong to the command.
WORDS = {"allow_interspersed_args": False}
JOB_ARGUMENT = click.argument("name", metavar="JOB")


@click.command(context_settings=WORDS, options_metavar="OPTIONS --")
@field_options(FIELDS)
@click.option("--env", "environment_", multiple=True, metavar="NAME=VALUE", help="set a variable; repeatable")
@click.option("--after", "after_", multiple=True, metavar="JOB", help="start once this job, or array, has succeeded")
@click.option(
    "--after-any", "after_any_", multiple=True, metavar="JOB", help="start once it has ended, however it ends"
)
@click.option(
    "--dir", "directory", type=click.Path(path_type=Path), metavar="DIR", help="send this directory; it runs in there"
)
@click.option("--exclude", multiple=True, metavar="PATTERN", help="with --dir: leave these files out; repeatable")
@click.option("--git", metavar="URL[@REF]", help="clone this repository; it runs in there")
@click.option("--wait", is_flag=True, help="follow its output, and exit with its code; of an array: await all")
@click.option("--stop-on-interrupt", "stops", is_flag=True, help="with --wait: stop the job on Ctrl-C or SIGTERM")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@output_options
@pass_invocation
def run(
    invocation: Invocation,
    /,
    *,
    command: tuple[str, ...],
    environment_: tuple[str, ...],
    after_: tuple[str, ...],
    after_any_: tuple[str, ...],
    directory: Path | None,
    exclude: tuple[str, ...],
    git: str | None,
    wait: bool,
    stops: bool,
    **given: Any,
) -> None:
    """Run COMMAND as a job: a node's agent starts it under a claim of its own, which ends with it.

    Unlike `gpucloud run`, this needs no shell on the node, and the job goes on when this client ends. With --wait its
    output comes here, and the exit code is the job's own; Ctrl-C then only ends this client, unless --stop-on-interrupt
    is given: cancelled pipelines leave nothing behind with it.

    Example: gpucloud job run --core 33 --memory 8GiB --wait -- python train.py
    """
    _refuse_mixed(stops=stops and not wait, excludes=bool(exclude) and directory is None, both=bool(git and directory))
    wanted = body(FIELDS, given) | {"command": list(command)}
    wanted |= read_variables(environment_)
    if name := Path(command[0]).name[:63].strip():
        wanted.setdefault("name", name)
    with invocation.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        wanted |= _find_all_awaited(api, after=after_, after_any=after_any_) | read_repository(git)
        if directory is not None:
            wanted["files"] = send_directory(api, wanted["tenant"], directory, exclude)
        if not wait:
            invocation.show(api.post("jobs/", wanted).body)
            return
        with _holding_interrupts() if stops else nullcontext():
            code = _await(api, api.post("jobs/", wanted).body, stops=stops)
    raise click.exceptions.Exit(code)


def _await(api: Api, job: dict[str, Any], *, stops: bool) -> int:
    """Follow the job, or the array that begins with it; return the exit code."""
    what, path = ("array", f"job-arrays/{job['array']}/") if job["array"] else ("job", f"jobs/{job['uid']}/")
    ends = "stops it" if stops else f"leaves it running, `gpucloud {what} stop` ends it"
    output.say(f"{what} {job['array'] or job['uid']} is created; Ctrl-C {ends}")
    with _stopping(api, path) if stops else nullcontext():
        return await_all(api, job["array"]) if job["array"] else code_of(follow(api, job))


def _refuse_mixed(*, stops: bool, excludes: bool, both: bool) -> None:
    if stops:
        raise Usage("--stop-on-interrupt needs --wait.")
    if excludes:
        raise Usage("--exclude is for --dir: name the directory, too.")
    if both:
        raise Usage("Give --dir or --git, not both.")


def read_repository(text: str | None) -> dict[str, str]:
    """Return the fields of URL[@REF]; an `@` of the server's name is none of a reference."""
    if text is None:
        return {}
    scheme, colon, rest = text.partition("://")
    place, slash, path = rest.partition("/")
    if not (colon and slash):
        raise Usage(f"--git {text}: give a URL like https://git.example.org/vision/train.git@main.")
    path, at, ref = path.partition("@")
    if at and not ref:
        raise Usage(f"--git {text}: name a branch, a tag or a commit after the @.")
    return {"git_url": f"{scheme}://{place}/{path}"} | ({"git_ref": ref} if ref else {})


def _find_all_awaited(api: Api, **named: tuple[str, ...]) -> dict[str, list[str]]:
    return {field: [find_awaited(api, one) for one in names] for field, names in named.items() if names}


@click.command()
@JOB_ARGUMENT
@click.option("-f", "--follow", "follows", is_flag=True, help="go on until the job has ended; exit with its code")
@click.option("--run", "run_", type=click.IntRange(1), metavar="N", help="the output of its Nth run; default: the last")
@click.option("--index", type=click.IntRange(0), metavar="I", help="JOB is an array: the output of its job I")
@connection_options
@pass_invocation
def logs(invocation: Invocation, /, name: str, follows: bool, run_: int | None, index: int | None) -> None:
    """Print the output of a job.

    Example: gpucloud job logs train.py --follow
    """
    if follows and run_ is not None:
        raise Usage("--follow prints the last run, and those after it: leave --run out.")
    with invocation.api() as api:
        job = find_job(api, name) if index is None else _find_of_array(api, name, index)
        if follows:
            raise click.exceptions.Exit(code_of(follow(api, job)))
        for text in _read(api, job["uid"], run=run_):
            _print(text)


@click.command()
@JOB_ARGUMENT
@output_options
@pass_invocation
def stop(invocation: Invocation, /, name: str) -> None:
    """Stop a job: SIGTERM, and SIGKILL ten seconds later; may be repeated.

    Example: gpucloud job stop train.py
    """
    with invocation.api() as api:
        invocation.show(api.post(f"jobs/{find_job(api, name)['uid']}/stop/", {}).body)


def _find_of_array(api: Api, name: str, index: int) -> dict[str, Any]:
    array = find_array(api, name)
    if index >= array["size"]:
        raise Usage(f"--index {index}: the jobs of {array['name']} are 0 to {array['size'] - 1}.")
    (job,) = api.rows("jobs/", most=1, array=array["uid"], array_index=index)
    return dict(job)


def follow(api: Api, job: dict[str, Any]) -> dict[str, Any]:
    """Print the output of the job's runs as it comes, and why it waits; return the job once it has ended."""
    run, offset, said, lost = job["runs"], 0, "", ""
    while True:
        try:
            job = api.get(f"jobs/{job['uid']}/").body
            said = tell(job, said)
            if job["runs"] > run:
                # What the run before still had to say comes first.
                offset = _print_from(api, job["uid"], run, offset)
                run, offset = run + 1, 0
                continue
            is_running = job["state"] == "running"
            offset = _print_from(api, job["uid"], run, offset, wait=FOLLOW_SECONDS if is_running else 0)
        except Unreachable as error:
            # The job goes on without the server.
            if str(error) != lost:
                output.say(str(error))
            lost, is_running = str(error), False
        else:
            lost = ""
            if job["state"] in OVER:
                return job
        if not is_running:
            time.sleep(WAITING_SECONDS)


@contextmanager
def _holding_interrupts() -> Iterator[None]:
    """Hold interrupts back until `_stopping` takes them: one during the POST would leave a job that nobody stops."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPTS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _stopping(api: Api, path: str) -> Iterator[None]:
    """Stop the job or the array if this process is interrupted or asked to end."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPTS)
        yield
    except KeyboardInterrupt:
        api.post(f"{path}stop/", {})
        output.say(f"{path.strip('/').replace('/', ' ')} is being stopped")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def code_of(job: dict[str, Any]) -> int:
    """Return the exit code of a job that has ended, and say how it ended if not by itself."""
    if job["dropped_bytes"]:
        output.say(f"{job['dropped_bytes']} bytes of its output were not kept")
    if job["state"] == "succeeded":
        return Exit.DONE
    output.say(f"job {job['uid']} {job['state']}: {job['reason'] or 'no reason is known'}")
    code = job["exit_code"]
    return Exit.FAILED if code in (None, 0) else int(code)


def _print_from(api: Api, uid: str, run: int, offset: int, *, wait: int = 0) -> int:
    for text, following in _parts(api, uid, run=run, offset=offset, wait=wait):
        _print(text)
        offset = following
    return offset


def _read(api: Api, uid: str, **wanted: Any) -> Iterator[str]:
    return (text for text, _ in _parts(api, uid, **wanted))


def _parts(api: Api, uid: str, *, run: int | None = None, offset: int = 0, wait: int = 0) -> Iterator[tuple[str, int]]:
    """Yield what is stored from the offset on, each part with the offset of the next one; wait for the first part."""
    while True:
        part = api.get(f"jobs/{uid}/output/", run=run, offset=offset, wait=wait or None).body
        if part["next_offset"] == offset:
            return
        offset, wait = part["next_offset"], 0
        yield part["text"], offset


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def tell(job: dict[str, Any], said: str) -> str:
    """Say on stderr what the job does, if that is news; return it."""
    if job["state"] == "waiting":
        names = ", ".join(one["name"] for one in job["waits_for"])
        words = f"job {job['uid']} waits: {job['reason'] or (f'for {names}' if names else 'for its turn')}"
    elif job["state"] == "queued":
        why = job["reason"] or "; ".join(reason["detail"] for reason in job["reasons"]) or "its turn has not come yet"
        words = f"job {job['uid']} waits: {why}"
    elif job["state"] == "running":
        words = f"job {job['uid']} runs on {job['node']}" + (f", run {job['runs']}" if job["runs"] > 1 else "")
    else:
        return said
    if words != said:
        output.say(words)
    return words


def read_variables(texts: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """Return the field of the variables, if there are any. Raises Usage."""
    return {"environment": dict(map(_variable, texts))} if texts else {}


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise Usage(f"--env {text}: give NAME=VALUE.")
    return name, value


@click.command("exec", context_settings=WORDS, options_metavar="OPTIONS [--]")
@JOB_ARGUMENT
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@connection_options
@pass_invocation
def exec_(invocation: Invocation, /, name: str, command: tuple[str, ...]) -> None:
    """Open a terminal in a running job: COMMAND, or a shell, under the job's claim, as its user, in its home.

    What is typed goes to the program, Ctrl-C too; the exit code is the program's own. Everything that was started in
    the terminal ends with it.

    Example: gpucloud job exec train.py -- nvidia-smi
    """
    with invocation.api() as api:
        job = find_job(api, name)
        # `--` after the job is common; click removes it only before the first argument.
        words = command[1:] if command[:1] == ("--",) else command
        code = terminal.run(api.url, api.token, f"jobs/{job['uid']}/terminal/", list(words))
    raise click.exceptions.Exit(code)


COMMANDS = {"job": (run, logs, stop, exec_)}
