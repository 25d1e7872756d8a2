"""`job notebook`."""

import time
import webbrowser
from dataclasses import replace
from typing import Any

import click

from gpucloud_cli import output
from gpucloud_cli.api import Api
from gpucloud_cli.commands.jobs import OVER, WAITING_SECONDS, read_repository, read_variables, tell
from gpucloud_cli.failures import Failure
from gpucloud_cli.fields import body_fields
from gpucloud_cli.options import Invocation, body, field_options, output_options, pass_invocation, tenant_of

# The others are of commands, or have options of their own.
OF_JOBS = frozenset(
    {"kind", "command", "environment", "after", "after_any", "files", "git_url", "git_ref", "retries"}
    | {"array_size", "at_once"}
)
FIELDS = tuple(
    replace(field, required=False) for field in body_fields("POST jobs/", "job") if field.name not in OF_JOBS
)


@click.command()
@field_options(FIELDS)
@click.option("--env", "environment_", multiple=True, metavar="NAME=VALUE", help="set a variable; repeatable")
@click.option("--git", metavar="URL[@REF]", help="clone this repository; it begins in there")
@click.option("--jupyter", metavar="PROGRAM", help="the program on the node, or in the image; default: jupyter")
@click.option("--open", "opens", is_flag=True, help="open it in this machine's browser once it runs")
@output_options
@pass_invocation
def notebook(
    invocation: Invocation,
    /,
    *,
    environment_: tuple[str, ...],
    git: str | None,
    jupyter: str | None,
    opens: bool,
    **given: Any,
) -> None:
    """Start a notebook: a job whose program is Jupyter, which a browser reaches through the server.

    It is opened by a browser that is signed in to the console, and ends when nobody has used it for --idle-minutes, or
    by `gpucloud job stop`. Its directory ends with it: bring files by --git, and push what should stay.

    Example: gpucloud job notebook --core 33 --memory 8GiB --name lab --open
    """
    wanted = body(FIELDS, given) | {"kind": "notebook"} | read_variables(environment_) | read_repository(git)
    wanted |= {"command": [jupyter]} if jupyter else {}
    wanted.setdefault("name", "notebook")
    with invocation.api() as api:
        wanted["tenant"] = tenant_of(api, wanted.get("tenant"))
        job = api.post("jobs/", wanted).body
        address = f"{api.url}/jobs/{job['uid']}/notebook/"
        if not opens:
            output.say(f"once it runs, open {address}")
            invocation.show(job)
            return
        _await_start(api, job)
    output.say(f"opens {address}")
    if not webbrowser.open(address):
        output.say("there is no browser here: open the address in one that is signed in")


def _await_start(api: Api, job: dict[str, Any]) -> None:
    """Return once the notebook runs, and say why it waits. Raises Failure if it ends before."""
    said = ""
    while job["state"] != "running":
        if job["state"] in OVER:
            raise Failure(f"notebook {job['uid']} has ended: {job['reason'] or job['state']}")
        said = tell(job, said)
        time.sleep(WAITING_SECONDS)
        job = api.get(f"jobs/{job['uid']}/").body


COMMANDS = {"job": (notebook,)}
