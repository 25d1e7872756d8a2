"""Distances between the GPUs of one machine (GaiaGPU's modes `link` and `fragment`).

Links are words of the agent, nearest first; GPUs without a known link are as far as can be. `nearest` chooses several
GPUs: in the smallest group that holds enough of them, at the nearest distance at which there is one. `least_broken`
chooses one: the GPU with the fewest free ones close to it, so that close groups stay whole for requests for several.
"""

from collections.abc import Sequence

DISTANCES = {"nvlink": 1, "pcie": 2, "numa": 3, "system": 4}
FAR = 4

# The distance from one GPU of the machine to another, row by row.
Near = tuple[tuple[int, ...], ...]
Members = tuple[int, ...]


def matrix(uuids: Sequence[str], links: Sequence[tuple[str, str, str]]) -> Near | None:
    """Return the distances among these GPUs; None if none is known."""
    places = {uuid: place for place, uuid in enumerate(uuids)}
    rows = [[FAR] * len(uuids) for _ in uuids]
    known = False
    for one, other, word in links:
        if one in places and other in places and DISTANCES.get(word, FAR) < FAR:
            a, b, distance = places[one], places[other], DISTANCES[word]
            rows[a][b] = rows[b][a] = min(rows[a][b], distance)
            known = True
    return tuple(tuple(row) for row in rows) if known else None


def nearest(free: Members, count: int, near: Near | None) -> tuple[int, Members]:
    """Return a cost, the lower the nearer, and the `count` GPUs among the free ones."""
    for distance in range(1, FAR):
        fitting = [group for group in _groups(free, near, distance) if len(group) >= count]
        if fitting:
            group = min(fitting, key=len)
            return distance * 64 + min(len(group), 63), tuple(sorted(_part(group, count, near, distance - 1)))
    return FAR * 64 + min(len(free), 63), tuple(sorted(_part(free, count, near, FAR - 1)))


def least_broken(free: Members, near: Near | None) -> tuple[int, int]:
    """Return a cost, the lower the less is broken, and the one GPU among the free ones."""
    return min((_neighbours(gpu, free, near), gpu) for gpu in free)


def _neighbours(gpu: int, free: Members, near: Near | None) -> int:
    """Return the numbers of free GPUs at each distance, the nearest first, in one number."""
    if near is None:
        return 0
    counts = [sum(near[gpu][other] == distance for other in free if other != gpu) for distance in range(1, FAR)]
    return sum(min(count, 255) << 8 * (FAR - 1 - place) for place, count in enumerate(counts, start=1))


def _part(group: Members, count: int, near: Near | None, distance: int) -> Members:
    """Return `count` of the group: whole inner groups, the largest first, and the rest from the smallest that fits."""
    if distance == 0 or near is None:
        return group[:count]
    taken: Members = ()
    left: list[Members] = []
    for inner in sorted(_groups(group, near, distance), key=lambda one: -len(one)):
        if len(inner) <= count - len(taken):
            taken += inner
        else:
            left.append(inner)
    if len(taken) == count:
        return taken
    # The sort is stable, and the last of the largest-first order is the smallest; ties fall to the first of them.
    smallest = min(left, key=len)
    return taken + _part(smallest, count - len(taken), near, distance - 1)


def _groups(members: Members, near: Near | None, distance: int) -> list[Members]:
    """Return the groups of GPUs that reach one another in steps of at most this distance; both in order."""
    if near is None:
        return [(member,) for member in members]
    groups, seen = [], set[int]()
    for first in members:
        if first in seen:
            continue
        reached, edge = {first}, [first]
        while edge:
            here = edge.pop()
            step = [other for other in members if other not in reached and near[here][other] <= distance]
            reached.update(step)
            edge += step
        seen |= reached
        groups.append(tuple(member for member in members if member in reached))
    return groups
