"""A tenant with bursts: a number of matrix products at intervals. One row a burst, with its duration."""

import time

import torch

from benchmarks.shim.programs.loop import Work, parser, say, serve


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=int, default=4096, help="rows and columns (4096)")
    arguments.add_argument("--products", type=int, default=250, help="products a burst (250, about 60 ms on an H200)")
    arguments.add_argument("--period", type=float, default=0.2, help="seconds from burst to burst (0.2)")
    options = arguments.parse_args()

    def prepare() -> Work:
        a, b = (torch.randn(options.size, options.size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        c = torch.empty_like(a)
        due = time.monotonic()

        def step() -> None:
            nonlocal due
            time.sleep(max(0.0, due - time.monotonic()))
            begin = time.monotonic()
            # A late burst does not make the next ones start at once.
            due = max(due, begin - options.period) + options.period
            for _ in range(options.products):
                torch.matmul(a, b, out=c)
            torch.cuda.synchronize()
            end = time.monotonic()
            say({"event": "burst", "at": end, "latency_ms": 1000 * (end - begin)})

        return Work(step, sync=True)

    serve(options, prepare)


if __name__ == "__main__":
    main()
