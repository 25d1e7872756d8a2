"""A kernel written in Triton, launched eight times, then waited for, each time."""

import torch
import triton  # type: ignore[import-not-found,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,unused-ignore]

from benchmarks.shim.programs.loop import Work, parser, serve

LENGTH, BLOCK, LAUNCHES = 1 << 22, 1024, 8


def main() -> None:
    serve(parser(__doc__).parse_args(), prepare)


def iterate(x_ptr, length, block: tl.constexpr):  # type: ignore[no-untyped-def] # Triton takes annotations for its own
    """Replace each x by the result of many rounds of x/2 + 1: some ten microseconds on a large GPU."""
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < length
    x = tl.load(x_ptr + at, mask=inside)
    for _ in range(256):
        x = x * 0.5 + 1.0
    tl.store(x_ptr + at, x, mask=inside)


def prepare() -> Work:
    kernel = triton.jit(iterate)
    x = torch.randn(LENGTH, device="cuda")
    grid = (triton.cdiv(LENGTH, BLOCK),)

    def step() -> None:
        for _ in range(LAUNCHES):
            kernel[grid](x, LENGTH, block=BLOCK)

    return Work(step, sync=True)


if __name__ == "__main__":
    main()
