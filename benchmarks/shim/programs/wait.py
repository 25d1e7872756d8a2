"""Launch and wait: tanh of a matrix product (bfloat16, square), then a wait for the GPU, each time."""

import torch

from benchmarks.shim.programs.loop import DEVICE, Work, parser, serve


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--size", type=int, default=2048, help="rows and columns (2048)")
    options = arguments.parse_args()

    def prepare() -> Work:
        x = torch.randn(options.size, options.size, device=DEVICE, dtype=torch.bfloat16)
        return Work(lambda: torch.tanh(x @ x), sync=True)

    serve(options, prepare)


if __name__ == "__main__":
    main()
