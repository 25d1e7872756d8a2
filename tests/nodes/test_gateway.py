"""The agents' gateway, through the ASGI application and a real Redis."""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec
import pytest

from agent import wire
from apps.nodes.gateway import intake, reconnect_throttle
from apps.nodes.models import Gpu, GpuHealth, Node, Sample
from apps.nodes.models.node import hint_group
from apps.quotas.principals import SYSTEM
from apps.scheduling import events
from apps.scheduling.models import Assignment, Claim
from apps.scheduling.services.claims.resize import resize_claim
from apps.scheduling.services.claims.spec import ClaimChanges
from apps.scheduling.services.cycles.rounds import run_round
from gpucloud import hints
from tests.cast import Cast, Machine, ask, done, gpu_uuid, hello, seen
from tests.nodes.agents import Agent, enrol_with, in_database, raw_frame
from tests.scheduling.routes import dump_database

Agents = Callable[..., Agent]
OBSERVED = wire.Observed(frame=1, assignments=[])
CHANGED = {"type": "node.changed"}


@pytest.mark.parametrize(
    "credential",
    ["", "x", "gpn_", "gpn_.", "gpn_{uid}", "gpn_{uid}.", "gpn_{uid}.wrong", "{uid}.secret", "gpc_{uid}.secret",
     "gpn_00000000-0000-0000-0000-000000000000.secret", "gpn_{uid}.secret ÿ", "gpn_{uid}.sécret"],
)  # fmt: skip
async def test_a_wrong_credential_closes_the_connection(agents: Agents, machine: Machine, credential: str) -> None:
    before = await in_database(dump_database)
    agent = await agents(credential.format(uid=machine.node.uid)).connect()
    assert await agent.closed() == wire.CLOSE_UNAUTHORISED
    await agent.say(hello("gpu1", gpus=1))
    assert await agent.quiet()
    assert await in_database(dump_database) == before


USAGE = wire.Usage(seq=1, at=1, gpus=[], assignments=[])
MALFORMED = {
    "nothing": "",
    "no JSON": "{",
    "an array": "[]",
    "no type": '{"v": 1}',
    "an unknown type": '{"v": 1, "type": "reboot"}',
    "a server's frame": wire.encode(wire.Ack(seq=1)),
    "another version": raw_frame(OBSERVED, v=2),
    "an unknown field": raw_frame(OBSERVED, colour="red"),
    "a wrong type": raw_frame(OBSERVED, frame="1"),
    "a negative number": raw_frame(OBSERVED, frame=-1),
    "a huge number": raw_frame(OBSERVED, frame=2**31),
    "a number of digits": raw_frame(OBSERVED, frame=0).replace('"frame": 0', '"frame": ' + "9" * 5000),
    "NaN": raw_frame(OBSERVED).replace('"frame": 1', '"frame": NaN'),
    "NUL": raw_frame(wire.Event(at=1, code="x", detail="y"), detail="a\x00b"),
    "half a character": '{"v": 1, "type": "event", "at": 1, "code": "x", "detail": "\\ud800"}',
    "deep nesting": '{"v":1,"type":"observed","frame":1,"assignments":' + "[" * 100_000,
    "a bad uid": raw_frame(OBSERVED, assignments=[{"uid": "../../etc/passwd", "generation": 1, "state": "in_force"}]),
    "binary": b"\x00\xff",
    "binary JSON": wire.encode(OBSERVED).encode(),
}


@pytest.mark.parametrize("text", MALFORMED.values(), ids=MALFORMED.keys())
async def test_a_malformed_frame_closes_the_connection_and_changes_nothing(agents: Agents, text: str | bytes) -> None:
    agent = agents()
    await agent.greet()
    before = await in_database(dump_database)
    await agent.say_raw(text)
    assert await agent.closed() == wire.CLOSE_MALFORMED
    assert await in_database(dump_database) == before


@pytest.mark.parametrize("letter", ["x", "é"])
async def test_a_frame_larger_than_a_mebibyte_closes_the_connection(agents: Agents, letter: str) -> None:
    agent = agents()
    await agent.greet()
    size = wire.MAX_FRAME_BYTES // len(letter.encode())
    await agent.say_raw('{"v": 1, "type": "event", "detail": "' + letter * size + '"}')
    assert await agent.closed() == wire.CLOSE_TOO_LARGE


@pytest.mark.parametrize("frame", [OBSERVED, wire.Conditions(conditions=[]), USAGE])
async def test_the_first_frame_must_be_a_hello(agents: Agents, frame: wire.Frame) -> None:
    before = await in_database(dump_database)
    agent = await agents().connect()
    await agent.say(frame)
    assert await agent.closed() == wire.CLOSE_MALFORMED
    assert await in_database(dump_database) == before


async def test_a_hello_with_another_nodes_gpu_is_refused(agents: Agents, real_cast: Cast) -> None:
    await in_database(lambda: Machine("gpu2", real_cast.pool))
    before = await in_database(dump_database)
    agent = await agents().connect()
    await agent.say(hello("gpu2"))
    assert await agent.closed() == wire.CLOSE_MALFORMED
    assert await in_database(dump_database) == before


async def test_a_gpu_that_is_gone_stays_with_what_is_promised_of_it_and_takes_nothing_new(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    agent = agents()
    await agent.greet(hello("gpu1", gpus=3))
    present = await in_database(lambda: list(Gpu.objects.order_by("index").values_list("present", flat=True)))
    assert present == [True, True, True, False]


async def test_a_hello_brings_welcome_and_the_whole_desired_state(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    claim = await in_database(lambda: ask(real_cast))
    await in_database(lambda: run_round(real_cast.pool))
    desired = await agents().greet()
    assert [item.claim_uid for item in desired.assignments] == [str(claim.uid)]
    assert await in_database(lambda: Node.objects.get(name="gpu1").online)


async def test_what_the_self_check_found_stands_in_the_node(agents: Agents, real_cast: Cast) -> None:
    check = wire.Check(name="disk", state="warning", detail="12 MiB free", cure="Free some.")
    await agents().greet(msgspec.structs.replace(hello("gpu1"), checks=[check]))
    node = await in_database(lambda: real_cast.olga.get("nodes/gpu1/").body)
    assert node["checks"] == [{"name": "disk", "state": "warning", "detail": "12 MiB free", "cure": "Free some."}]
    # A tenant need not know what fails on a machine.
    assert (await in_database(lambda: real_cast.anna.get("nodes/gpu1/").body))["checks"] == []


async def test_what_the_agent_observes_is_taken(agents: Agents, real_cast: Cast, machine: Machine) -> None:
    claim = await in_database(lambda: ask(real_cast))
    await in_database(lambda: run_round(real_cast.pool))
    agent = agents()
    desired = await agent.greet()
    await agent.say(wire.Observed(frame=desired.frame, assignments=[done(item) for item in desired.assignments]))
    await agent.say(wire.Usage(seq=1, at=time.time(), gpus=[], assignments=[]))
    await agent.hear()
    assert await in_database(lambda: Claim.objects.get(pk=claim.pk).state) == "active"


async def test_what_is_committed_reaches_the_socket_without_a_worker(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    agent = agents()
    first = await agent.greet()
    claim = await in_database(lambda: ask(real_cast))
    await in_database(lambda: run_round(real_cast.pool))
    pushed = await agent.hear()
    assert isinstance(pushed, wire.Desired)
    assert pushed.frame == first.frame + 1
    assert [item.claim_uid for item in pushed.assignments] == [str(claim.uid)]
    await in_database(lambda: resize_claim(principal=SYSTEM, claim=claim, changes=ClaimChanges(core_request=50)))
    again = await agent.hear()
    assert isinstance(again, wire.Desired)
    assert [(item.generation, item.core_request) for item in again.assignments] == [(2, 50)]


async def test_a_word_of_another_release_does_not_keep_pushes_from_the_socket(agents: Agents, machine: Machine) -> None:
    agent = agents()
    await agent.greet()
    group = hint_group(machine.node.pk)
    await hints.bus().publish([(group, {"type": "node.of-tomorrow"}), (group, {}), (group, CHANGED)])
    assert isinstance(await agent.hear(), wire.Desired)


async def test_a_push_to_another_node_does_not(agents: Agents, real_cast: Cast) -> None:
    agent = agents()
    await agent.greet()
    other = await in_database(lambda: Machine("gpu2", real_cast.pool))
    await in_database(lambda: events.push([other.node.pk], why="change"))
    assert await agent.quiet()


async def test_a_push_before_the_hello_is_not_sent(agents: Agents, machine: Machine) -> None:
    agent = await agents().connect()
    await in_database(lambda: events.push([machine.node.pk], why="change"))
    assert await agent.quiet()


async def test_a_second_connection_takes_over_from_the_first(agents: Agents, machine: Machine) -> None:
    first, second = agents(), agents()
    await first.greet()
    await second.greet()
    assert await first.closed() == wire.CLOSE_SUPERSEDED
    await in_database(lambda: events.push([machine.node.pk], why="change"))
    assert isinstance(await second.hear(), wire.Desired)


async def test_a_second_hello_does_not_end_its_own_connection(agents: Agents) -> None:
    agent = agents()
    await agent.greet()
    await agent.say(hello("gpu1"))
    assert isinstance(await agent.hear(), wire.Welcome)
    assert isinstance(await agent.hear(), wire.Desired)
    assert await agent.quiet()


async def test_who_says_hello_twice_is_told_once_and_leaves_nothing_behind(agents: Agents, machine: Machine) -> None:
    agent = agents()
    await agent.greet()
    await agent.say(hello("gpu1"))
    assert [type(await agent.hear()) for _ in range(2)] == [wire.Welcome, wire.Desired]
    group = hint_group(machine.node.pk)
    assert len(hints.bus()._joined[group]) == 1
    await agent.hang_up()
    assert group not in hints.bus()._joined


def usage(seq: int, at: float, *uids: str, gpus: tuple[str, ...] = ()) -> wire.Usage:
    return wire.Usage(
        seq=seq,
        at=at,
        gpus=[wire.GpuUsage(uuid=uuid, core_percent=50, memory_bytes=1) for uuid in gpus],
        assignments=[
            wire.AssignmentUsage(
                uid=uid, core_percent=25, core_limit_percent=30, throttled_percent=1, memory_bytes=1,
                memory_limit_bytes=2, processes=1,
            )
            for uid in uids
        ],
    )  # fmt: skip


async def test_usage_is_acknowledged_and_stored_once_however_often_it_is_sent(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    await in_database(lambda: ask(real_cast))
    await in_database(lambda: run_round(real_cast.pool))
    uid = str((await in_database(Assignment.objects.get)).uid)
    agent = agents()
    await agent.greet()
    now = time.time()
    for _ in range(2):
        await agent.say(usage(7, now, uid, uid, gpus=(gpu_uuid("gpu1", 0),)))
        assert await agent.hear() == wire.Ack(seq=7)
    assert await in_database(Sample.objects.count) == 2


async def test_who_sends_without_waiting_is_told_to_come_again(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "MOST_OF_ONE", 2)
    monkeypatch.setattr(intake, "GATHER_SECONDS", 60)
    agent = agents()
    await agent.greet()
    for seq in (1, 2, 3):
        await agent.say(usage(seq, time.time()))
    assert await agent.closed() == wire.CLOSE_BUSY


async def test_usage_of_foreign_gpus_and_assignments_is_ignored(agents: Agents, real_cast: Cast) -> None:
    other = await in_database(lambda: Machine("gpu2", real_cast.pool, gpus=1, memory_mib=30 * 1024))
    await in_database(lambda: ask(real_cast, memory_mib=29 * 1024))
    await in_database(lambda: run_round(real_cast.pool))
    foreign = await in_database(Assignment.objects.get)
    agent = agents()
    await agent.greet()
    strangers = (str(foreign.uid), "00000000-0000-0000-0000-000000000000")
    await agent.say(usage(1, time.time(), *strangers, gpus=(gpu_uuid(other.name, 0),)))
    assert await agent.hear() == wire.Ack(seq=1)
    assert await in_database(Sample.objects.count) == 0


async def test_a_report_on_another_nodes_assignment_changes_nothing(agents: Agents, real_cast: Cast) -> None:
    await in_database(lambda: Machine("gpu2", real_cast.pool, gpus=1, memory_mib=30 * 1024))
    claim = await in_database(lambda: ask(real_cast, memory_mib=29 * 1024))
    await in_database(lambda: run_round(real_cast.pool))
    foreign = await in_database(Assignment.objects.get)
    agent = agents()
    await agent.greet()
    observation = await in_database(lambda: seen(foreign))
    await agent.say(wire.Observed(frame=1, assignments=[observation]))
    await agent.say(usage(1, time.time()))
    await agent.hear()
    assert await in_database(lambda: Claim.objects.get(pk=claim.pk).state) == "assigned"


async def test_an_event_is_kept_where_operators_look(agents: Agents, real_cast: Cast) -> None:
    agent = agents()
    await agent.greet()
    await agent.say(wire.Event(at=time.time(), code="nvml-lost", detail="gone"))
    await agent.say(usage(1, time.time()))
    await agent.hear()
    rows = await in_database(lambda: real_cast.olga.get("audit/?action=agent.nvml-lost").body["results"])
    assert [(row["actor"], row["after"]["detail"]) for row in rows] == [("agent:gpu1", "gone")]


async def test_after_a_renewed_enrolment_the_old_key_is_shut_out(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    answer = await in_database(lambda: real_cast.olga.post("nodes/gpu1/enrolment/"))
    machine.enrolment = answer.body["enrolment_token"]
    still = agents()
    await still.greet()
    await in_database(lambda: enrol_with(machine, "another"))
    old = await agents().connect()
    assert await old.closed() == wire.CLOSE_UNAUTHORISED
    await agents(f"gpn_{machine.node.uid}.another").greet()
    assert await still.closed() == wire.CLOSE_SUPERSEDED


async def test_an_agents_conditions_are_taken(agents: Agents, machine: Machine) -> None:
    agent = agents()
    await agent.greet()
    sick = wire.Condition(
        type="NoXidErrors", status="False", reason="Xid79", since=1, gpu_uuid=gpu_uuid("gpu1", 2), unschedulable=True
    )
    await agent.say(wire.Conditions(conditions=[sick]))
    # The acknowledgement of a later frame: by then this one is stored.
    await agent.say(wire.Usage(seq=1, at=1, gpus=[], assignments=[]))
    assert isinstance(await agent.hear(), wire.Ack)
    assert (await in_database(lambda: machine.gpu(2))).unhealthy == "XID 79"


async def test_who_waits_too_long_among_many_is_told_to_come_again(
    agents: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconnect_throttle, "LONGEST_WAIT_SECONDS", 0.3)
    async with AsyncExitStack() as others:
        for _ in range(reconnect_throttle.AT_ONCE):
            await others.enter_async_context(reconnect_throttle.of_this_loop().slot())
        late = await agents().connect()
        await late.say(hello(late.machine.name))
        assert await late.closed() == wire.CLOSE_BUSY
    assert (await agents().greet()).assignments == []


async def test_who_would_wait_too_long_is_told_at_once_when_to_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnect_throttle, "FIRST_MEAN_SECONDS", 10.0)
    throttle = reconnect_throttle.Throttle()

    async def wait() -> None:
        async with throttle.slot():
            await asyncio.sleep(3600)

    waiting = [asyncio.ensure_future(wait()) for _ in range(2 * reconnect_throttle.AT_ONCE)]
    await asyncio.sleep(0.05)
    with pytest.raises(reconnect_throttle.TooMany) as refused:
        async with throttle.slot():
            raise AssertionError("there was no slot")
    # This one would be the fifth to wait; four are greeted at a time, each for ten seconds.
    assert refused.value.seconds == 12.5
    for one in waiting:
        one.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_health_report_is_stored_and_the_welcome_says_that_it_would_be(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    agent = await agents().connect()
    await agent.say(hello("gpu1"))
    welcome = await agent.hear()
    assert isinstance(welcome, wire.Welcome)
    assert welcome.health
    readings = [wire.GpuHealth(uuid=gpu_uuid("gpu1", index), temperature_celsius=50.0 + index) for index in range(2)]
    version = await in_database(lambda: machine.gpu().version)
    await agent.say(wire.Health(at=time.time(), gpus=readings, processes=[]))
    # The acknowledgement of a later frame: by then the report is stored.
    assert isinstance(await agent.hear(), wire.Desired)
    await agent.say(wire.Usage(seq=1, at=1, gpus=[], assignments=[]))
    assert isinstance(await agent.hear(), wire.Ack)
    found = await in_database(lambda: dict(GpuHealth.objects.values_list("gpu__index", "temperature_celsius")))
    assert found == {0: 50.0, 1: 51.0}
    assert await in_database(lambda: machine.gpu().version) == version


async def test_an_agent_of_an_earlier_release_needs_no_health_reports(
    agents: Agents, real_cast: Cast, machine: Machine
) -> None:
    """It ignores the new field of the welcome, and its frames are taken as before."""

    class FormerWelcome(wire.Frame, tag="welcome", frozen=True, kw_only=True, forbid_unknown_fields=False):
        node_uid: wire.Uid
        node_name: wire.Word
        server_time: wire.Seconds

    agent = await agents().connect()
    await agent.say(hello("gpu1"))
    message = await agent.socket.receive_output(timeout=5)
    assert msgspec.json.decode(message["text"], type=FormerWelcome).node_name == "gpu1"
    await agent.say(OBSERVED)
    assert await in_database(lambda: real_cast.olga.get(f"gpus/{gpu_uuid('gpu1', 0)}/").body["health"]) is None
