"""Many ResourceClaims placed together."""

from apps.clusters.dra import batches, ledger
from apps.clusters.models import Cluster, DeviceClaim
from apps.nodes.models import Gpu
from apps.scheduling.services.claims.desired import desired_state
from tests.cast import GIB, Cast, Machine, assert_books_agree, give, placed, used
from tests.clusters.dra import things
from tests.clusters.dra.test_ledger import allocated, cluster, follow, machine, made

__all__ = ["cluster", "machine"]


def test_many_are_placed_at_once_and_none_twice(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    asked = [made(f"c{number}", core=10, memory="1Gi") for number in range(12)]
    for one in asked:
        follow(cluster, one)
    gpus = [machine.gpu(0), machine.gpu(1)]
    seen = [allocated(one, gpus[place % 2], core=10, memory_mib=GIB) for place, one in enumerate(asked)]
    assert len(batches.place(cluster=cluster, things=seen)) == 12
    assert batches.place(cluster=cluster, things=seen) == set()
    assert sorted(Gpu.objects.values_list("core_used", flat=True)) == [60, 60]
    assert set(DeviceClaim.objects.values_list("node_name", "seen", "problem")) == {("gpu1", True, "")}
    sent = [one.resource_claim for one in desired_state(machine.node).assignments]
    assert {one.share_id for one in sent if one is not None} == {things.SHARE}
    machine.obey()
    assert set(DeviceClaim.objects.values_list("claim__state", flat=True)) == {"active"}
    # Each is in step already.
    for one in seen:
        assert follow(cluster, one).problem == ""
    assert used(cast.acme)["core_percent"] == 120
    assert_books_agree()


def test_one_without_room_is_left_and_keeps_back_no_other(cast: Cast, cluster: Cluster, machine: Machine) -> None:
    give(cast.acme, core_percent=None, memory_mib=None)
    claim, _ = placed(cast, machine, core_request=80, memory_mib=GIB)
    full = claim.assignments.get().gpu
    free = next(gpu for gpu in (machine.gpu(0), machine.gpu(1)) if gpu.pk != full.pk)
    first, second = made("first"), made("second")
    other, larger, charged_otherwise = made("other"), made("larger", core=40), made("odd", core=20)
    for one in (first, second, other, larger, charged_otherwise):
        follow(cluster, one)
    seen = [
        allocated(first, free), allocated(second, full), allocated(larger, free, core=40),
        allocated(charged_otherwise, free, core=25), other,
    ]  # fmt: skip
    uids = {thing["metadata"]["uid"] for thing in (first, larger)}
    assert batches.place(cluster=cluster, things=seen) == uids
    states = dict(DeviceClaim.objects.values_list("name", "claim__state"))
    assert {name for name, state in states.items() if state == "allocating"} == {"second", "other", "odd"}
    # What is left finds its reason.
    row = ledger.follow(cluster=cluster, thing=seen[1], labels=dict)
    assert row is not None
    assert "no room" in row.problem
    assert_books_agree()
