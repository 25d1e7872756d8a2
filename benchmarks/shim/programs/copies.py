"""A copy in a loop, from one half of device memory to the other: bandwidth without arithmetic."""

import torch

from benchmarks.shim.programs.loop import DEVICE, Work, parser, serve


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--mib", type=int, default=2048, help="MiB of one copy (2048)")
    options = arguments.parse_args()

    def prepare() -> Work:
        source = torch.ones(options.mib << 20, device=DEVICE, dtype=torch.uint8)
        target = torch.empty_like(source)
        # By a kernel: the copy engines' traffic is none of the SMs' work.
        return Work(lambda: torch.bitwise_not(source, out=target))

    serve(options, prepare)


if __name__ == "__main__":
    main()
