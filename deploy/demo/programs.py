"""Commands that the demo starts."""

import http
import http.client
import os
import sys
from dataclasses import dataclass, replace

from deploy.demo.nodes import BUILD, ROOT, Node, virtual_node
from deploy.demo.state import State
from deploy.demo.static import collect
from deploy.embedded.processes import Program

HOST = "127.0.0.1"
PYTHON = sys.executable
# Variables of `gpucloud/settings.py`, Django, Compose and libpq, and an operator's own token: a shell may have them
# set.
CONTROL_PLANE = frozenset(
    {
        "ADMISSION_CDI_DEVICE",
        "ADMISSION_DEFAULT_CORE",
        "ADMISSION_DEFAULT_MEMORY_MIB",
        "ADMISSION_DEVICES_KEYS",
        "ADMISSION_DEVICES_KEYS_FILE",
        "ADMISSION_GPU_MEMORY_MIB",
        "ADMISSION_LIBRARY_DIRECTORY",
        "ADMISSION_MIG",
        "ADMISSION_REFUSE_UNMET",
        "ADMISSION_SCHEDULER_NAME",
        "ADMISSION_TRANSLATE",
        "ADMISSION_TRUSTED",
        "ALLOWED_HOSTS",
        "CLUSTER_ACCOUNT",
        "CSRF_TRUSTED_ORIGINS",
        "CURRENCY",
        "DATABASE_PASSWORD",
        "DATABASE_PASSWORD_FILE",
        "DATABASE_POOL_SIZE",
        "DATABASE_URL",
        "DEBUG",
        "DJANGO_SETTINGS_MODULE",
        "EMAIL_FROM",
        "EMAIL_HOST",
        "EMAIL_HOST_PASSWORD",
        "EMAIL_HOST_PASSWORD_FILE",
        "EMAIL_HOST_USER",
        "EMAIL_PORT",
        "EMAIL_USE_TLS",
        "EXTENDER_CERTIFICATE",
        "EXTENDER_CIDRS",
        "EXTENDER_CLIENT_CA",
        "EXTENDER_HOST",
        "EXTENDER_KEY",
        "EXTENDER_LEASE",
        "EXTENDER_PORT",
        "GPUCLOUD_TOKEN",
        "GPUCLOUD_TOKEN_FILE",
        "GPUSHARE_UNIT_MIB",
        "HEARTBEAT_PATH",
        "HTTPS_ONLY",
        "LOCAL_ACCOUNTS",
        "LOG_LEVEL",
        "METRICS_CIDRS",
        "METRICS_MOST_DETAILS",
        "NOTEBOOKS_URL",
        "OIDC_CLIENT_ID",
        "OIDC_CLIENT_SECRET",
        "OIDC_CLIENT_SECRET_FILE",
        "OIDC_GROUPS_CLAIM",
        "OIDC_GROUP_ROLES",
        "OIDC_ISSUER",
        "OIDC_SCOPES",
        "OIDC_USERNAME_CLAIM",
        "PGPASSFILE",
        "PGPASSWORD",
        "POD_CLAIM_SECONDS",
        "POSTGRES_PASSWORD",
        "PUBLIC_URL",
        "REDIS_PREFIX",
        "REDIS_URL",
        "RESOURCE_CLAIM_UNUSED_SECONDS",
        "SECRET_KEY",
        "SECRET_KEY_FALLBACKS",
        "SECRET_KEY_FILE",
        "SESSION_HOURS",
        "SESSION_IDLE_MINUTES",
        "STATIC_ROOT",
        "TELEMETRY_HOURS_DAYS",
        "JOB_FILES_MIB",
        "JOB_OUTPUT_DAYS",
        "JOB_OUTPUT_MIB",
        "TELEMETRY_MINUTES_DAYS",
        "TELEMETRY_RAW_HOURS",
        "TELEMETRY_TENS_DAYS",
        "THROTTLE_BURST",
        "THROTTLE_PER_SECOND",
        "WEBHOOK_NETWORKS",
    }
)


@dataclass(frozen=True)
class Workload:
    """A seeded claim's program, as ``manage.py seed_demo --workloads`` prints it."""

    claim: str
    secret: str
    agent_socket: str
    command: tuple[str, ...]


class Commands:
    """The commands of one installation."""

    def __init__(self, state: State, *, port: int, database_url: str, redis_url: str) -> None:
        self.state, self.port = state, port
        self.address = f"http://{HOST}:{port}"
        self.control_plane = {name: os.environ[name] for name in CONTROL_PLANE if name in os.environ} | {
            "DATABASE_URL": database_url,
            "REDIS_URL": redis_url,
            "SECRET_KEY": state.secret_key(),
            "DEBUG": "0",
            "ALLOWED_HOSTS": f"{HOST},localhost",
            "DJANGO_SETTINGS_MODULE": "gpucloud.settings",
            # Browsers know that names below localhost are this machine's.
            "NOTEBOOKS_URL": f"http://notebooks.localhost:{port}",
        }

    def manage(self, name: str, *arguments: str) -> Program:
        """Return a Django command."""
        return self._program(name, PYTHON, str(ROOT / "manage.py"), *arguments, more=self.control_plane)

    def server(self, name: str = "server", *, port: int | None = None) -> Program:
        """Return the web server's program, on the platform's port or one of its own.

        Raises StartFailed if the static files cannot be made.
        """
        port = port or self.port
        program = self._program(
            name,
            *(PYTHON, "-m", "gpucloud.server", "--host", HOST, "--port", str(port)),
            *("--log-level", "warning", "--timeout-graceful-shutdown", "3"),
            # Each request runs in a thread; the pool spares each thread its own connection.
            more=self.control_plane | {"DATABASE_POOL_SIZE": "16", "STATIC_ROOT": str(collect())},
        )
        return replace(program, ready=lambda: _serves(port), ready_seconds=180.0)

    def scheduler(self, name: str = "scheduler") -> Program:
        return self.manage(name, "scheduler")

    def worker(self, name: str = "worker") -> Program:
        # Most tasks are a few queries: reconnecting would cost more than the task.
        quiet = ("--without-gossip", "--without-mingle", "--without-heartbeat")
        command = (*self._celery("worker"), "--concurrency", "2", *quiet)
        return self._program(name, *command, more=self.control_plane | {"DATABASE_POOL_SIZE": "2"})

    def beat(self) -> Program:
        schedule = str(self.state.root / "run" / "beat-schedule")
        command = (*self._celery("beat", app="gpucloud.beat"), "--schedule", schedule, "--pidfile", "")
        return self._program("beat", *command, more=self.control_plane)

    def agent(self, node: Node) -> Program:
        directory = self.state.node(node.name)
        run_directory = self.state.run_directory(node.name)
        more = {"GPUCLOUD_RUN_DIR": str(run_directory)}
        if os.geteuid() != 0:
            # Jobs run as whoever runs the demo, and never as root.
            more["GPUCLOUD_JOBS"] = "self"
        if token := self.state.enrol_token(node.name):
            more["GPUCLOUD_ENROL_TOKEN"] = token
        if node.simulated:
            more["GPUCLOUD_SIM_NODE"] = str(virtual_node(directory, node.name))
            more["LD_LIBRARY_PATH"] = library_path()
            # Simulated GPU memory takes next to no memory of this machine, in host memory neither.
            more["GPUCLOUD_SUSPEND_MEMORY_MIB"] = str(256 * 1024)
        command = (PYTHON, "-m", "agent", "run", "--server", self.address, "--state-dir", str(directory))
        # The socket exists once it serves; an agent of an earlier launcher may have left an old one.
        socket = run_directory / "agent.sock"
        program = self._program(f"agent-{node.name}", *command, more=more)
        return replace(program, ready=socket.exists, prepare=lambda: socket.unlink(missing_ok=True))

    def workload(self, workload: Workload) -> Program:
        """Return a seeded claim's program, under its limits.

        ``agent exec`` gets the claim's environment from the agent and becomes the program.
        """
        command = (PYTHON, "-m", "agent", "exec", workload.claim, "--", *workload.command)
        more = {"GPUCLOUD_CLAIM_SECRET": workload.secret, "GPUCLOUD_AGENT_SOCKET": workload.agent_socket}
        return replace(self._program(f"program-{workload.claim[:8]}", *command, more=more), stop_seconds=5.0)

    def _celery(self, role: str, *, app: str = "gpucloud") -> tuple[str, ...]:
        return (PYTHON, "-m", "celery", "-A", app, role, "--loglevel", "warning")

    def _program(self, name: str, *command: str, more: dict[str, str]) -> Program:
        """Return a program without the control plane's variables, which include secrets."""
        inherited = {key: value for key, value in os.environ.items() if key not in CONTROL_PLANE}
        return Program(
            name=name,
            command=command,
            log=self.state.log(name),
            environment={**inherited, "PYTHONUNBUFFERED": "1", **more},
            directory=ROOT,
        )


def _serves(port: int) -> bool:
    """Return True if /readyz answers 200: the server reaches its database and its broker."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def library_path() -> str:
    """Return a library path with the simulated driver before the machine's own."""
    return os.pathsep.join(filter(None, [str(BUILD / "sim"), os.environ.get("LD_LIBRARY_PATH", "")]))
