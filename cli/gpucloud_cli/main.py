"""The command tree, and the mapping of failures to exit codes."""

import os
import signal
import sys

import click

from gpucloud_cli import __version__, output
from gpucloud_cli.commands import (
    acts,
    apply,
    arrays,
    claims,
    describe,
    groups,
    jobs,
    nodes,
    notebooks,
    notices,
    pools,
    reports,
    requests,
    reservations,
    run,
    session,
    tokens,
    top,
    users,
    webhooks,
)
from gpucloud_cli.failures import MEANINGS, Exit, Failure, Interrupted, exit_code
from gpucloud_cli.resources import TABLE
from gpucloud_cli.verbs import group

PARTS = (
    acts, session, claims, describe, groups, jobs, notebooks, arrays, nodes, notices, pools, tokens, requests,
    reservations, reports, run, top, users, webhooks, apply,
)  # fmt: skip
CODES = "\n".join(f"  {code.value:>3}  {meaning}" for code, meaning in MEANINGS.items())
EPILOG = f"""\b
Where the server is and who asks, the first that is given:
  --url, --token-file
  GPUCLOUD_URL; GPUCLOUD_TOKEN or GPUCLOUD_TOKEN_FILE
  the config file that `gpucloud login` writes (GPUCLOUD_CONFIG)
Also read: GPUCLOUD_TENANT, GPUCLOUD_PATIENCE (how long a lost request is tried again, 10s), NO_COLOR.

\b
Exit codes:
{CODES}
`run`, `claim exec` and `job run --wait` end with their program's own."""


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpucloud")
def root() -> None:
    """Share GPUs, for people and pipelines.

    Data goes to stdout, messages to stderr.
    """


def build() -> click.Group:
    """Build the command tree."""
    for resource in TABLE:
        root.add_command(group(resource), resource.name)
    for part in PARTS:
        for name, commands in part.COMMANDS.items():
            for command in commands:
                _group(name).add_command(command)
    webhooks_group = _group("webhook")
    webhooks_group.add_command(webhooks_group.commands["remove"], "delete")
    return root


def _group(name: str) -> click.Group:
    """Return the group of this name; the root for none."""
    found = root.commands[name] if name else root
    assert isinstance(found, click.Group)
    return found


def main() -> int:
    """Run the command line; return the exit code."""
    try:
        # The code of `click.exceptions.Exit`; None if the command ran to its end.
        code = build().main(prog_name="gpucloud", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        return Exit.USAGE
    except (click.Abort, KeyboardInterrupt):
        output.say("interrupted")
        return Exit.INTERRUPTED
    except Interrupted as failure:
        return exit_code(failure)
    except Failure as failure:
        output.say(str(failure))
        return exit_code(failure)
    except BrokenPipeError:
        # The reader of the pipe is gone (`| head`); Python must not flush to it.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except UnicodeEncodeError as error:
        output.say(f"what was given is not text in UTF-8: {error.object!r}")
        return Exit.USAGE
    except OSError as error:
        output.say(str(error))
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.FAILED
    return code or Exit.DONE
