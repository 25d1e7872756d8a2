"""The head of a pool's queue from round to round, and what is kept for it (`core.backfill`).

A claim that is head stays it until it is placed, leaves, or a more urgent one is refused: what was kept for it once is
not given away because shares have moved. Its shadow is cast anew where the head, or a GPU of the shadow, has changed
otherwise than by what was placed here since.
"""

from collections.abc import Callable, Collection, Iterable

from apps.scheduling.core.backfill import Running, Shadow, cast_shadow
from apps.scheduling.core.fleet import Fleet
from apps.scheduling.core.gangs import NOTHING, Held
from apps.scheduling.core.queue import Ask
from apps.scheduling.core.refusals import could_help
from apps.scheduling.core.values import GpuState, Placed, Refused, Request
from apps.scheduling.core.walk import kept_for_earlier


class Unanswerable(Exception):
    """Something raised over these claims: its cause says how. The fleet that was asked may be left half changed."""

    def __init__(self, ask: Ask) -> None:
        super().__init__(", ".join(claim.id for claim in ask.members))
        self.ask = ask


class Front:
    """One pool's head. `ending` says what ends by itself on these GPUs; asked only where a shadow is cast."""

    def __init__(self, ending: Callable[[Collection[str], float], Iterable[Running]]) -> None:
        self._ending = ending
        self.head: Ask | None = None
        self.shadow: Shadow | None = None
        self._stale = False
        # Claims, by what they ask, that wait only because their room is kept for the head.
        self._kept_out: dict[tuple[Request, ...], set[int]] = {}

    def look(self, fleet: Fleet, gpus: Collection[str], reserved: Callable[[Ask], Held], *, now: float) -> None:
        """Cast the shadow anew where that is due; `reserved` says what the head may not count on.

        Raises Unanswerable.
        """
        if self.head is None or not self._stale:
            return
        self._stale = False
        self._kept_out.clear()
        running = self._ending(gpus, now)
        try:
            self.shadow = cast_shadow(fleet, self.head, running, now=now, held=reserved(self.head))
        except Exception as error:
            raise Unanswerable(self.head) from error

    def held_from(self, ask: Ask, *, now: float) -> Held:
        """What these claims may not count on. The more urgent pass the head by right."""
        shadow, head = self.shadow, self.head
        if shadow is None or head is None or ask == head or ask.priority > head.priority:
            return NOTHING
        helds = [shadow.held_from(claim, now=now) for claim in ask.members]
        return max(helds, key=lambda held: sum(map(sum, held.values())))

    def refused(self, ask: Ask) -> None:
        """There is no room for it: it is the head where there is none, or none as urgent."""
        if self.head is None or ask.priority > self.head.priority:
            self.head, self.shadow, self._stale = ask, None, True

    def why_not(self, fleet: Fleet, ask: Ask, *, held: Held) -> Refused | None:
        """Why it waits, where all that it lacks is kept for the head; `held` is kept from it anyway."""
        return None if self.shadow is None else kept_for_earlier(fleet, ask, self.shadow, held=held)

    def keep_out(self, ask: Ask) -> None:
        """These claims wait only because their room is kept: until it is not, or other room is freed for them."""
        requests = tuple(claim.request for claim in ask.members)
        self._kept_out.setdefault(requests, set()).update(claim.since for claim in ask.members)

    def kept_out(self) -> set[int]:
        """Those claims, by their number."""
        return set().union(*self._kept_out.values())

    def placed(self, ask: Ask, answer: tuple[Placed, ...], *, now: float) -> None:
        """These claims are placed, by right or because they delay nobody."""
        if self.shadow is None:
            # Now something more may end by itself.
            self._stale |= ask.time_limit_seconds is not None
            return
        if self.head is not None and ask.priority > self.head.priority:
            self._stale |= any(self.shadow.gpus & set(placed.gpus) for placed in answer)
            return
        for claim, placed in zip(ask.members, answer, strict=True):
            self.shadow = self.shadow.after(placed.gpus, claim, now=now)

    def changed(self, gpu: GpuState) -> None:
        """Somebody else changed this GPU."""
        self._stale |= self.shadow is not None and gpu.uuid in self.shadow.gpus
        for kind in [kind for kind in self._kept_out if any(could_help(gpu, request) for request in kind)]:
            del self._kept_out[kind]

    def forget(self) -> None:
        """Cast the shadow anew at the next round, whatever is known."""
        self._stale = True

    def left(self, key: int, uid: str, *, back: bool = False) -> None:
        """The claim waits no longer; or it is `back` in a moment, and only what was said of it is forgotten."""
        for keys in self._kept_out.values():
            keys.discard(key)
        if back:
            return
        if self.head is not None and any(claim.id == uid for claim in self.head.members):
            self.drop()

    def drop(self) -> None:
        """The head is it no longer."""
        self.head = self.shadow = None
        self._kept_out.clear()
