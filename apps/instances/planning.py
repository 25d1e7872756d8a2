"""Moves of MIG instances that make room for one more: which claims, released and placed again, and where they come.

A claim that is placed again goes to the cheapest place that there is then, as any claim does. So a plan is a set of
claims after whose release the wanted instance and all of theirs have a place, whoever is placed first: the queue's
order may change until then. Of all such sets the smallest is chosen, then the one with the fewest memory slices.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import NamedTuple

from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.mig import Mig, Profile
from apps.scheduling.core.values import Placed, Request

# Each move stops programs: of plans with more, nobody would accept all.
MOST_MOVES = 2
# Of 64 claims there are 2,080 sets, and one is tried in less than a millisecond where a place could become free.
MOST_CLAIMS = 64


class Instance(NamedTuple):
    """A running claim whose instance may be moved. Its request names its first slice."""

    claim: str
    gpu: str
    request: Request


class Move(NamedTuple):
    """The claim, and the place where it comes if the claims of the plan are placed before the wanted one."""

    claim: str
    to_gpu: str
    to_start: int


def find_moves(
    fleet: Fleet, instances: Sequence[Instance], wanted: Request, *, most: int = MOST_MOVES
) -> tuple[Move, ...]:
    """Return the fewest moves after which the wanted instance can be made; none if it can be now, or never."""
    if isinstance(fleet.place(wanted), Placed):
        return ()
    divided = {gpu.uuid: gpu.mig for gpu in fleet.gpus() if gpu.mig is not None}
    sized = [(size, one) for one in instances if (size := _size(divided, one))]
    sized.sort(key=lambda item: (item[0], item[1].claim))
    for chosen in _cheapest_first(sized[:MOST_CLAIMS], most):
        if _could_fit(divided, chosen, wanted.profile or "") and (moves := _try(fleet, chosen, wanted)):
            return moves
    return ()


def _size(divided: Mapping[str, Mig], one: Instance) -> int:
    profile = _profile_of(divided, one)
    return profile.size if profile is not None else 0


def _profile_of(divided: Mapping[str, Mig], one: Instance) -> Profile | None:
    mig = divided.get(one.gpu)
    return mig.find(one.request.profile or "") if mig is not None else None


def _cheapest_first(sized: Sequence[tuple[int, Instance]], most: int) -> Iterator[tuple[Instance, ...]]:
    for count in range(1, most + 1):
        sets = [(sum(size for size, _ in some), [one for _, one in some]) for some in combinations(sized, count)]
        sets.sort(key=lambda item: (item[0], [one.claim for one in item[1]]))
        yield from (tuple(some) for _, some in sets)


def _could_fit(divided: Mapping[str, Mig], chosen: Iterable[Instance], profile: str) -> bool:
    """Return True if a place for the profile is free on one of their GPUs once they are gone."""
    left: dict[str, Mig] = {}
    for one in chosen:
        left[one.gpu] = left.get(one.gpu, divided[one.gpu]).vacated(one.request.profile or "", one.request.start or 0)
    return any(mig.free_starts(profile) for mig in left.values())


def _try(fleet: Fleet, chosen: Sequence[Instance], wanted: Request) -> tuple[Move, ...]:
    """Return the moves if everything has a place in both orders; the fleet is as before afterwards."""
    for one in chosen:
        fleet.give_back([one.gpu], one.request)
    again = [replace(one.request, start=None) for one in chosen]
    first = _place_all(fleet, [*again, wanted])
    last = _place_all(fleet, [wanted, *again])
    for one in chosen:
        fleet.take([one.gpu], one.request)
    if first is None or last is None:
        return ()
    return tuple(Move(one.claim, *place) for one, place in zip(chosen, first, strict=False))


def _place_all(fleet: Fleet, requests: Sequence[Request]) -> list[tuple[str, int]] | None:
    """Return the GPU and first slice of each, placed one after the other; None: one has no place. Undone at the end."""
    taken: list[tuple[str, Request]] = []
    for request in requests:
        answer = fleet.place(request)
        if not isinstance(answer, Placed):
            break
        [gpu] = fleet.some_gpus(answer.gpus)
        assert gpu.mig is not None
        there = replace(request, start=gpu.mig.choose(request.profile or ""))
        fleet.take([gpu.uuid], there)
        taken.append((gpu.uuid, there))
    for uuid, request in reversed(taken):
        fleet.give_back([uuid], request)
    return [(uuid, request.start or 0) for uuid, request in taken] if len(taken) == len(requests) else None
