"""A matrix product in a loop (bfloat16, square)."""

import torch

from benchmarks.shim.programs.loop import Work, parser, serve

# About a millisecond of products on a large GPU, and not so many that counts become coarse.
MOST_BATCH = 64


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=int, default=8192, help="rows and columns (8192)")
    arguments.add_argument("--sync", action="store_true", help="wait for every product")
    options = arguments.parse_args()

    def prepare() -> Work:
        a, b = (torch.randn(options.size, options.size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        batch = 1 if options.sync else max(1, min(MOST_BATCH, (8192 // options.size) ** 3))
        return Work(lambda: torch.matmul(a, b, out=c), batch, options.sync)

    serve(options, prepare)


if __name__ == "__main__":
    main()
