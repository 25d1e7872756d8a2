"""The output of all runs on its way to the server: a piece of each in turn, at a bounded rate.

On each connection, a run's output begins where the server says that it has it. The next piece of a run waits for the
server's answer to the one before, so a slow server bounds it too, and the frames of other kinds come first.
"""

import time
from collections.abc import Callable, Mapping

from agent import statefile, wire
from agent.jobs.run_directory import RunDirectory
from agent.logs import log

# Of all runs together: usage frames behind a piece of output wait for less than a tenth of a second.
BYTES_PER_SECOND = 1 << 20
# A server that has dropped a piece answers nothing.
ANSWER_SECONDS = 30.0
ACTIVE_SECONDS = 1.0


class OutputSender:
    """The pieces of output for one connection after the other. The event loop's."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._runs: dict[str, tuple[wire.JobRun, RunDirectory]] = {}
        # The server's answers on this connection, and when a piece was sent that it has not answered yet.
        self._stored: dict[str, int] = {}
        self._sent_at: dict[str, float] = {}
        self._free_at = float("-inf")

    def know_runs(self, runs: Mapping[str, tuple[wire.JobRun, RunDirectory]]) -> None:
        """Set the runs that may have output. Those that come first get their turn last."""
        waiting = [uid for uid in self._runs if uid in runs]
        self._runs = {uid: runs[uid] for uid in (*waiting, *(uid for uid in runs if uid not in self._runs))}
        self._stored = {uid: length for uid, length in self._stored.items() if uid in runs}
        self._sent_at = {uid: at for uid, at in self._sent_at.items() if uid in runs}

    def restart(self) -> None:
        """Begin a new connection."""
        self._stored, self._sent_at = {}, {}

    def take_answer(self, uid: str, length: int) -> None:
        """Take the server's answer to a piece: it has the run's output up to this length."""
        if self._sent_at.pop(uid, None) is not None:
            self._stored[uid] = length

    @property
    def is_active(self) -> bool:
        """True if a piece was sent in the last moments: more may follow at once."""
        return bool(self._sent_at) or self._clock() - self._free_at < ACTIVE_SECONDS

    def has_piece(self) -> bool:
        """Return whether a piece may be sent now."""
        return self._clock() >= self._free_at and any(self._is_ready(uid) for uid in self._runs)

    def next(self) -> wire.Output | None:
        """Return the next piece; None if none may be sent now."""
        now = self._clock()
        if now < self._free_at:
            return None
        for uid in [uid for uid in self._runs if self._is_ready(uid)]:
            offset = self._offset(uid)
            try:
                data = self._runs[uid][1].read_output(offset)
            except OSError as error:
                log.warning("output-not-read", run=uid, reason=str(error))
                continue
            if data:
                self._sent_at[uid] = now
                self._free_at = now + len(data) / BYTES_PER_SECOND
                # The others come first next time.
                self._runs[uid] = self._runs.pop(uid)
                return wire.Output(uid=uid, offset=offset, data=data)
        return None

    def _offset(self, uid: str) -> int:
        return max(self._runs[uid][0].stored, self._stored.get(uid, 0))

    def _is_ready(self, uid: str) -> bool:
        if self._clock() - self._sent_at.get(uid, float("-inf")) < ANSWER_SECONDS:
            return False
        try:
            return self._runs[uid][1].output_bytes() > self._offset(uid)
        except (OSError, statefile.Damaged):
            return False
