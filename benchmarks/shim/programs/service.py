"""A service that decodes: requests come at random times (Poisson), each some steps of a transformer. A row a request.

``latency_ms`` counts from the arrival of the request, ``service_ms`` from the start of its processing. Every run has
the same arrivals.
"""

import random
import time

import torch

from benchmarks.shim.programs import decode
from benchmarks.shim.programs.loop import DEVICE, Work, parser, say, serve

# A sleep ends late by some tens of microseconds: the last part of a wait polls the clock.
SPIN_SECONDS = 0.0003


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--steps", type=int, default=6, help="tokens a request (6, about 5 ms on an H200)")
    arguments.add_argument("--rate", type=float, default=55.0, help="requests a second (55: a third of an H200)")
    options = arguments.parse_args()
    serve(options, lambda: Service(options.steps, options.rate).work())


class Service:
    """One server with a queue."""

    def __init__(self, steps: int, rate: float) -> None:
        self._steps, self._rate = steps, rate
        self._decode = decode.prepare().step if DEVICE == "cuda" else lambda: time.sleep(0.001)
        self._token = torch.zeros(1, device=DEVICE)
        self._begin()

    def work(self) -> Work:
        return Work(self._step, waits=True, begin=self._begin)

    def _begin(self) -> None:
        self._chance = random.Random(1)  # noqa: S311 - arrivals, not secrets
        self._came = time.monotonic() + self._chance.expovariate(self._rate)

    def _step(self) -> None:
        """Wait for the next request and answer it; those that come meanwhile queue."""
        time.sleep(max(0.0, self._came - time.monotonic() - SPIN_SECONDS))
        while (begun := time.monotonic()) < self._came:
            pass
        for _ in range(self._steps):
            self._decode()
            # Each token is read before the next step, as by a server that streams them.
            self._token.item()
        end = time.monotonic()
        latency, service = 1e3 * (end - self._came), 1e3 * (end - begun)
        say({"event": "request", "at": end, "latency_ms": latency, "service_ms": service})
        self._came += self._chance.expovariate(self._rate)


if __name__ == "__main__":
    main()
