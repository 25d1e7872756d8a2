"""Observation of a claim's usage page: the generation that libvcuda has applied inside the running process."""

import time
from pathlib import Path

from agent.claims.abi import PagesLibrary
from agent.claims.usage import UsagePage

LIBRARY = Path(__file__).resolve().parent.parent / "libvcuda" / "build" / "libvcuda-pages.so"
# Often enough not to matter, seldom enough to leave the core to the measured processes.
EVERY_SECONDS = 0.0005


class Echo:
    """The usage page of a claim on this machine."""

    def __init__(self, run_dir: Path, claim_uid: str) -> None:
        self._page = UsagePage(PagesLibrary(LIBRARY), run_dir / "claims" / claim_uid)

    def generation(self) -> int:
        """Return the least generation that a process of the claim has in force on its first GPU; 0 if none runs."""
        return (self._page.read() and self._page.totals(0).observed_generation) or 0

    def gpu_time_ns(self) -> int:
        """Return the claim's GPU time on its first GPU so far, by libvcuda's account."""
        return self._page.totals(0).gpu_time_ns if self._page.read() else 0

    def wait(self, generation: int, *, seconds: float) -> float:
        """Return `time.perf_counter()` when the generation is seen in force."""
        deadline = time.perf_counter() + seconds
        while self.generation() < generation:
            if time.perf_counter() > deadline:
                raise TimeoutError(f"generation {generation} was not in force after {seconds} s")
            time.sleep(EVERY_SECONDS)
        return time.perf_counter()
