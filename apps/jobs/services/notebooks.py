"""Notebooks: jobs whose program is Jupyter, reached through the server, and ended when nobody uses them.

Jupyter listens at a unix socket in the run's home (`agent.jobs.notebooks`), and so do its kernels: a port of the
node's loopback could be read by its other tenants.
"""

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from django.utils import timezone
from django.utils.crypto import salted_hmac

from apps.jobs.models import Job, JobKind
from apps.jobs.services.lifecycle import nodes_of
from apps.quotas.principals import SYSTEM
from apps.quotas.services import audit
from apps.scheduling.services.claims.lifecycle import raise_frames

# The job's command is the name of the program `jupyter`, and options of its server.
DEFAULT_COMMAND = ("jupyter",)
SOCKET, TOKEN = ".notebook.sock", "JUPYTER_TOKEN"
# A change of what the agent reports that is worth a write.
WORTH_SECONDS = 20
# `$0` is the program, `$@` its options. The working directory is the run's home, whose path may be too long for a
# socket; the kernels have other working directories, so theirs go by that of Jupyter, which has the shell's pid.
SCRIPT = f"""\
export JUPYTER_RUNTIME_DIR="/proc/$$/cwd/.runtime"
for kind in lab server; do
  if command -v "$0-$kind" > /dev/null; then
    exec "$0-$kind" --no-browser --ServerApp.sock={SOCKET} --ServerApp.sock_mode=0600 \\
      --KernelManager.transport=ipc --ServerApp.base_url=/ "$@"
  fi
done
echo "There is no Jupyter here: neither $0-lab nor $0-server is a program. Let the node's operator install one" >&2
echo "(pip install jupyterlab), or name another one, or a container image that has one." >&2
exit 127
"""


def program_of(command: Sequence[str]) -> list[str]:
    """Return the command that a node starts for a notebook's."""
    return ["sh", "-c", SCRIPT, *command]


def token_of(run_uid: UUID | str) -> str:
    """Return the token of a run's Jupyter, which only the server and the run know."""
    return salted_hmac("gpucloud.notebooks.token", str(run_uid), algorithm="sha256").hexdigest()


def note_idle(job: Job, seconds: int) -> None:
    """Record for how long a locked, running notebook was not used, and end it by its rule."""
    if job.kind != JobKind.NOTEBOOK:
        return
    since = timezone.now() - timedelta(seconds=seconds)
    if job.idle_since is None or abs((job.idle_since - since).total_seconds()) > WORTH_SECONDS:
        job.change(idle_since=since)
    if job.idle_minutes is None or seconds < 60 * job.idle_minutes or job.stop_requested_at is not None:
        return
    why = f"not used for {job.idle_minutes} minutes: no kernel was busy, and nobody was connected to one"
    audit.record(SYSTEM, "job.stop", job, before={"state": job.state}, after={"why": why})
    job.change(stop_requested_at=timezone.now(), reason=why)
    raise_frames(nodes_of(job))
