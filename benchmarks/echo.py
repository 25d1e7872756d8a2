"""Watching a claim's usage page: the generation that libvcuda, inside the running process, has acted on."""

import time
from pathlib import Path

from agent.claims.abi import PagesLibrary
from agent.claims.usage import UsagePage

LIBRARY = Path(__file__).resolve().parent.parent / "libvcuda" / "build" / "libvcuda-pages.so"
# Often enough not to count, seldom enough to leave the core to those who are measured.
EVERY_SECONDS = 0.0005


class Echo:
    """The usage page of a claim on this machine."""

    def __init__(self, run_dir: Path, claim_uid: str) -> None:
        self._page = UsagePage(PagesLibrary(LIBRARY), run_dir / "claims" / claim_uid)

    def generation(self) -> int:
        """The least generation that a process of the claim has in force on its first GPU; 0 where none runs."""
        return (self._page.read() and self._page.totals(0).observed_generation) or 0

    def gpu_time_ns(self) -> int:
        """GPU time of the claim on its first GPU so far, by libvcuda's account."""
        return self._page.totals(0).gpu_time_ns if self._page.read() else 0

    def wait(self, generation: int, *, seconds: float) -> float:
        """`time.perf_counter()` at the moment in which it is seen in force."""
        deadline = time.perf_counter() + seconds
        while self.generation() < generation:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"generation {generation} was not in force after {seconds} s")
            time.sleep(EVERY_SECONDS)
        return time.perf_counter()
