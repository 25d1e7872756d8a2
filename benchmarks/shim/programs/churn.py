"""Tensors of random sizes made, filled and dropped; sometimes the cache is emptied, so that the driver allocates."""

import random

import torch

from benchmarks.shim.programs.loop import Work, parser, serve

MIB = 1 << 20
KEPT, EMPTY_EVERY = 32, 64


def main() -> None:
    options = parser(__doc__).parse_args()
    serve(options, prepare)


def prepare() -> Work:
    chance = random.Random(1)  # noqa: S311 - sizes, not secrets
    kept: list[torch.Tensor | None] = [None] * KEPT
    count = 0

    def step() -> None:
        nonlocal count
        count += 1
        at = chance.randrange(KEPT)
        kept[at] = None
        kept[at] = torch.empty(chance.randint(1, 32 * MIB), dtype=torch.uint8, device="cuda").fill_(1)
        if count % EMPTY_EVERY == 0:
            torch.cuda.empty_cache()

    def release() -> None:
        kept[:] = [None] * KEPT
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    return Work(step, batch=16, release=release)


if __name__ == "__main__":
    main()
