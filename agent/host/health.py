"""The conditions of each GPU and of the node, made of the readings: state, since when, and whether claims are kept off.

A condition that turns bad is reported at once. One that turns good again is reported after it stayed so for a while
(`hold_seconds`), so that a GPU that fails now and then takes no claims in between. An error that only a reset cures
stays until the machine was restarted or an operator clears it; it is stored on disk, so that a restarted agent does not
forget it.

Pure of I/O but for that file; clocks are arguments.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from agent import statefile, wire
from agent.host import xids
from agent.host.health_metrics import HealthMetrics
from agent.logs import log
from agent.wire import ConditionType

# So many readings in a row, a second apart: the clocks of a busy GPU dip for moments.
HOT_LOOKS = 3
HW_THERMAL = 0x40
# Slower, but by the driver's own care: software's thermal limit, the board's power brake.
WARM = {0x20: "SwThermalSlowdown", 0x80: "HwPowerBrake"}


class Verdict(NamedTuple):
    """The present state of one condition; `reason` None: well."""

    type: ConditionType
    reason: str | None = None
    message: str = ""
    gpu_uuid: str | None = None
    unschedulable: bool = False
    # True if it ends at once when it is well, without a time to wait.
    at_once: bool = False
    # Since when, in seconds since 1970, if that is not the first reading of it.
    since: float | None = None


class XidError(msgspec.Struct, frozen=True):
    """An XID error of a GPU."""

    number: int
    # Seconds since 1970, by this machine's clock.
    at: float


class Stored(msgspec.Struct, frozen=True):
    """The file: the errors without a cure when the agent last ran, and the boot id of the machine."""

    boot: str
    uncured: dict[str, XidError] = msgspec.field(name="wounds")


class _State:
    """One condition over time."""

    def __init__(self, reported: wire.Condition) -> None:
        self.reported = reported
        # Since when it is well, by the monotonic clock, while it is still reported as not well.
        self.well_since: float | None = None


class Health:
    """All conditions of this node. Not thread-safe: the event loop's."""

    def __init__(self, path: Path, *, hold_seconds: float, boot: str) -> None:
        self._path = path
        self._hold_seconds = hold_seconds
        self._boot = boot
        self._states: dict[tuple[str | None, str], _State] = {}
        self._uncured: dict[str, XidError] = {}
        # By GPU: the last XID that time cures, and when it came, by the monotonic clock.
        self._recent: dict[str, tuple[int, float]] = {}
        # The last XID of each GPU by uuid, whatever cures it.
        self.last_xids: dict[str, XidError] = {}
        self._ecc: dict[str, int] = {}
        self._ecc_at: dict[str, float] = {}
        self._hot: dict[str, int] = {}
        self._read()

    def update(self, metrics: Iterable[HealthMetrics], node: Iterable[Verdict], *, now: float, at: float) -> bool:
        """Take the readings; return True if a condition changed. `now` is monotonic, `at` seconds since 1970."""
        verdicts = [*node]
        for one in metrics:
            self._take_xids(one, now=now, at=at)
            verdicts += [self._reach(one), self._xid(one, now), self._memory(one, now), self._heat(one)]
        seen = {(verdict.gpu_uuid, str(verdict.type)) for verdict in verdicts}
        changed = [self._step(verdict, now=now, at=at) for verdict in verdicts]
        # A removed GPU has no conditions any more. Without any reading all stay as they were.
        if any(uuid is not None for uuid, _ in seen):
            self._states = {key: state for key, state in self._states.items() if key in seen}
        return any(changed)

    def to_wire(self) -> wire.Conditions:
        """Return the frame of all conditions."""
        return wire.Conditions(conditions=self.conditions)

    @property
    def conditions(self) -> list[wire.Condition]:
        """The reported conditions, the node's own first."""
        order = sorted(self._states, key=lambda key: (key[0] or "", key[1]))
        return [self._states[key].reported for key in order][: wire.MAX_CONDITIONS]

    def clear(self, cleared: Mapping[str, float]) -> None:
        """Clear, by an operator's order, the XID errors of these GPUs, by uuid, that came before the given times."""
        left = {uuid: error for uuid, error in self._uncured.items() if error.at > cleared.get(uuid, 0.0)}
        if left != self._uncured:
            for uuid in self._uncured.keys() - left.keys():
                log.info("xid-cleared", gpu=uuid, xid=self._uncured[uuid].number)
                state = self._states.get((uuid, ConditionType.NO_XID_ERRORS))
                if state is not None:
                    # An operator has checked it: there is nothing to wait for.
                    state.well_since = float("-inf")
            self._uncured = left
            self._write()

    def _take_xids(self, one: HealthMetrics, *, now: float, at: float) -> None:
        for number in one.xids:
            self.last_xids[one.gpu_uuid] = XidError(number, at)
            cure = xids.cure(number)
            log.warning("xid", gpu=one.gpu_uuid, xid=number, cure=cure.value)
            if cure is xids.Cure.TIME:
                self._recent[one.gpu_uuid] = number, now
            elif cure is xids.Cure.RESET and self._number(one.gpu_uuid) != number:
                self._uncured[one.gpu_uuid] = XidError(number, at)
                self._write()

    def _number(self, gpu_uuid: str) -> int | None:
        error = self._uncured.get(gpu_uuid)
        return error.number if error is not None else None

    def _reach(self, one: HealthMetrics) -> Verdict:
        if not one.lost:
            return Verdict(ConditionType.REACHABLE, gpu_uuid=one.gpu_uuid)
        words = "NVML no longer reaches the GPU: it has fallen off the bus or does not answer."
        return Verdict(ConditionType.REACHABLE, "GpuLost", words, one.gpu_uuid, unschedulable=True)

    def _xid(self, one: HealthMetrics, now: float) -> Verdict:
        kind = ConditionType.NO_XID_ERRORS
        error = self._uncured.get(one.gpu_uuid)
        if error is not None:
            words = f"XID {error.number}: {xids.describe(error.number)}. Reset the GPU or the machine, then clear it."
            return Verdict(kind, f"Xid{error.number}", words, one.gpu_uuid, unschedulable=True)
        number, came = self._recent.get(one.gpu_uuid, (0, 0.0))
        if number and now - came < self._hold_seconds:
            words = f"XID {number}: {xids.describe(number)}."
            return Verdict(kind, f"Xid{number}", words, one.gpu_uuid, unschedulable=True, at_once=True)
        # An error that time cures has waited for its time already.
        return Verdict(kind, gpu_uuid=one.gpu_uuid, at_once=bool(number))

    def _memory(self, one: HealthMetrics, now: float) -> Verdict:
        kind, uuid = ConditionType.MEMORY_HEALTHY, one.gpu_uuid
        if one.ecc_errors > self._ecc.get(uuid, one.ecc_errors):
            self._ecc_at[uuid] = now
        if not one.lost:
            self._ecc[uuid] = one.ecc_errors
        if one.repair_failed:
            words = "Bad memory could not be replaced by spare rows: the GPU is to be exchanged."
            return Verdict(kind, "RemapFailed", words, uuid, unschedulable=True)
        if one.repair_pending:
            words = "Bad memory is replaced at the GPU's next reset: reset it when its claims have ended."
            return Verdict(kind, "RemapPending", words, uuid, unschedulable=True)
        if now - self._ecc_at.get(uuid, float("-inf")) < self._hold_seconds:
            words = f"ECC found errors that it could not correct, {one.ecc_errors} since the driver was loaded."
            return Verdict(kind, "UncorrectedEcc", words, uuid, unschedulable=True, at_once=True)
        return Verdict(kind, gpu_uuid=uuid, at_once=uuid in self._ecc_at)

    def _heat(self, one: HealthMetrics) -> Verdict:
        kind, uuid = ConditionType.TEMPERATURE_OK, one.gpu_uuid
        bits = one.clocks & (HW_THERMAL | sum(WARM))
        self._hot[uuid] = self._hot.get(uuid, 0) + 1 if bits else 0
        if self._hot[uuid] < HOT_LOOKS:
            return Verdict(kind, gpu_uuid=uuid)
        if bits & HW_THERMAL:
            words = "The GPU is too hot: its hardware slows it to half its clock or less."
            return Verdict(kind, "HwThermalSlowdown", words, uuid, unschedulable=True)
        reason = next(name for bit, name in WARM.items() if bits & bit)
        return Verdict(kind, reason, "The GPU's clocks are lowered to spare it.", uuid)

    def _step(self, verdict: Verdict, *, now: float, at: float) -> bool:
        """Update the condition; return True if the reported one changed."""
        state = self._states.get((verdict.gpu_uuid, verdict.type))
        if verdict.reason is None:
            if state is not None and state.reported.status == "False":
                state.well_since = now if state.well_since is None else state.well_since
                if now - state.well_since < self._hold_seconds and not verdict.at_once:
                    return False
            elif state is not None:
                return False
        reported = _to_condition(verdict, at)
        if state is None:
            self._states[verdict.gpu_uuid, verdict.type] = _State(reported)
            if verdict.reason is not None:
                _log(reported)
            return True
        state.well_since = None
        same = (state.reported.status, state.reported.reason) == (reported.status, reported.reason)
        same = same and verdict.since in (None, state.reported.since)
        if same and state.reported.message == reported.message:
            return False
        _log(reported)
        # A message with other numbers is no new condition.
        state.reported = msgspec.structs.replace(reported, since=state.reported.since) if same else reported
        return True

    def _read(self) -> None:
        try:
            stored = statefile.read(self._path, Stored)
        except statefile.Damaged as error:
            log.warning("health-file-damaged", reason=str(error))
            return
        if stored is not None and stored.boot == self._boot:
            self._uncured = stored.uncured

    def _write(self) -> None:
        try:
            statefile.write(self._path, Stored(self._boot, self._uncured))
        except OSError as error:
            log.warning("health-not-stored", reason=str(error))


def _log(reported: wire.Condition) -> None:
    log.warning(
        "condition", type=reported.type, status=reported.status, reason=reported.reason, gpu=reported.gpu_uuid or "node"
    )


def _to_condition(verdict: Verdict, at: float) -> wire.Condition:
    well = verdict.reason is None
    return wire.Condition(
        type=str(verdict.type),
        status="True" if well else "False",
        reason="AsExpected" if verdict.reason is None else verdict.reason,
        message="" if well else verdict.message,
        since=at if verdict.since is None else verdict.since,
        gpu_uuid=verdict.gpu_uuid,
        unschedulable=verdict.unschedulable and not well,
    )
