"""Moves that make room for an instance, compared with every set of claims that could be moved."""

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from hypothesis import given
from hypothesis import strategies as st

from apps.instances.planning import Instance, Move, find_moves
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.mig import Mig, core_percent
from apps.scheduling.core.values import GpuState, Request
from tests.scheduling.divided import MEMORY_MIB, profiles

PROFILES = profiles("H200")
SIZES = {one.name: one for one in PROFILES}
NAMES = sorted(SIZES)
# A GPU as the brute force sees it: the profile at each first slice.
Board = dict[int, str]


def request(name: str, start: int | None = None) -> Request:
    return Request(1, core_percent(SIZES[name], PROFILES), SIZES[name].memory_mib, profile=name, start=start)


def taken(board: Board) -> set[int]:
    return {start + more for start, name in board.items() for more in range(SIZES[name].size)}


def starts(board: Board, name: str) -> list[int]:
    used = taken(board)
    return [at for at in SIZES[name].starts if not used & set(range(at, at + SIZES[name].size))]


def room(board: Board, name: str) -> int:
    """Return the most instances of the profile beside those there, by trying every set of places."""
    free = starts(board, name)
    for count in range(len(free), 0, -1):
        for some in combinations(free, count):
            slices = [at + more for at in some for more in range(SIZES[name].size)]
            if len(slices) == len(set(slices)):
                return count
    return 0


def value(board: Board) -> int:
    return sum(SIZES[name].size * room(board, name) for name in NAMES)


def put(boards: list[Board], name: str) -> tuple[list[Board], tuple[int, int]] | None:
    """Return the boards with the instance at its cheapest place, and that place; None: it has none."""
    places = [
        (value(board) - value({**board, at: name}), number, -at)
        for number, board in enumerate(boards)
        for at in starts(board, name)
    ]
    if not places:
        return None
    _, number, at = min(places)
    return [{**board, -at: name} if number == one else board for one, board in enumerate(boards)], (number, -at)


def works(boards: list[Board], gone: Sequence[tuple[int, int]], wanted: str) -> bool:
    """Return True if the wanted one and all that are gone have a place, with the wanted one first or last."""
    left = [{at: name for at, name in board.items() if (one, at) not in gone} for one, board in enumerate(boards)]
    moved = [boards[one][at] for one, at in gone]
    for order in ([*moved, wanted], [wanted, *moved]):
        now: list[Board] = left
        for name in order:
            if (answer := put(now, name)) is None:
                return False
            now = answer[0]
    return True


def every_plan(boards: list[Board], fixed: set[tuple[int, int]], wanted: str) -> Iterator[tuple[int, int]]:
    """Yield the number of claims and of slices of each set of one or two that makes room."""
    claims = [(one, at) for one, board in enumerate(boards) for at in board if (one, at) not in fixed]
    for count in (1, 2):
        for some in combinations(claims, count):
            # Either of two may be named, and so placed, first.
            if any(works(boards, order, wanted) for order in permutations(some)):
                yield count, sum(SIZES[boards[one][at]].size for one, at in some)


def fleet_of(boards: list[Board]) -> Fleet:
    gpus = []
    for number, board in enumerate(boards):
        mig = Mig(PROFILES, sum(1 << one for one in taken(board)))
        core = 100 - sum(core_percent(SIZES[name], PROFILES) for name in board.values())
        memory = MEMORY_MIB["H200"] - sum(SIZES[name].memory_mib for name in board.values())
        gpu = GpuState(f"gpu{number}", "node", number, "H200", MEMORY_MIB["H200"], core, memory, False, mig=mig)
        gpus.append(gpu)
    return Fleet(gpus)


def instances_of(boards: list[Board], fixed: set[tuple[int, int]] = frozenset()) -> list[Instance]:  # type: ignore[assignment]
    return [
        Instance(f"{one}-{at}", f"gpu{one}", request(name, at))
        for one, board in enumerate(boards)
        for at, name in board.items()
        if (one, at) not in fixed
    ]


@st.composite
def scenes(draw: st.DrawFn) -> tuple[list[Board], set[tuple[int, int]]]:
    """Draw one or two GPUs with instances anywhere, of which some are fixed."""
    boards: list[Board] = []
    for _ in range(draw(st.integers(1, 2))):
        board: Board = {}
        for name in draw(
            st.lists(st.sampled_from(["1g.18gb", "1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb"]), max_size=4)
        ):
            if free := starts(board, name):
                board[draw(st.sampled_from(free))] = name
        boards.append(board)
    every = [(one, at) for one, board in enumerate(boards) for at in board]
    return boards, set(draw(st.lists(st.sampled_from(every), max_size=1))) if every else set()


@given(scenes(), st.sampled_from(NAMES))
def test_the_plan_is_the_cheapest_of_all_sets_that_make_room(
    scene: tuple[list[Board], set[tuple[int, int]]], wanted: str
) -> None:
    boards, fixed = scene
    fleet = fleet_of(boards)
    before = list(fleet.gpus())
    moves = find_moves(fleet, instances_of(boards, fixed), request(wanted))
    assert list(fleet.gpus()) == before
    if put(boards, wanted) is not None:
        assert moves == ()
        return
    plans = list(every_plan(boards, fixed, wanted))
    found = [
        (one, at) for move in moves for one, board in enumerate(boards) for at in board if move.claim == f"{one}-{at}"
    ]
    if moves:
        assert works(boards, found, wanted)
        assert (len(found), sum(SIZES[boards[one][at]].size for one, at in found)) == min(plans)
    else:
        assert not plans


def test_a_small_instance_in_the_middle_is_placed_again_at_the_end() -> None:
    boards: list[Board] = [{1: "1g.18gb"}]
    assert find_moves(fleet_of(boards), instances_of(boards), request("4g.71gb")) == (Move("0-1", "gpu0", 6),)


def test_nothing_is_moved_for_what_fits_now_or_never() -> None:
    boards: list[Board] = [{1: "1g.18gb"}]
    assert find_moves(fleet_of(boards), instances_of(boards), request("3g.71gb")) == ()
    assert find_moves(fleet_of(boards), instances_of(boards), request("7g.141gb")) == ()


def test_what_would_come_back_to_the_same_place_is_not_moved() -> None:
    """Slices are free in sum, but a 3g has two places only, and each is half taken by what cannot go elsewhere."""
    boards: list[Board] = [{0: "2g.35gb", 4: "2g.35gb", 2: "1g.18gb", 6: "1g.18gb"}]
    assert find_moves(fleet_of(boards), instances_of(boards), request("3g.71gb")) == ()
