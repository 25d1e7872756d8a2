"""One rank of an NCCL all-reduce of bfloat16 tensors, its GPU chosen by the rank."""

import os

import torch
from torch import distributed

from benchmarks.shim.programs.loop import Work, parser, say, serve

MIB = 1 << 20


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--rank", type=int, required=True)
    arguments.add_argument("--ranks", type=int, default=2)
    arguments.add_argument("--port", type=int, required=True, help="of rank 0, on 127.0.0.1")
    arguments.add_argument("--mib", type=int, default=256, help="MiB a tensor (256)")
    options = arguments.parse_args()
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(options.port)}

    def prepare() -> Work:
        torch.cuda.set_device(options.rank)
        distributed.init_process_group("nccl", rank=options.rank, world_size=options.ranks)
        tensor = torch.ones(options.mib * MIB // 2, device="cuda", dtype=torch.bfloat16)
        distributed.all_reduce(tensor)
        torch.cuda.synchronize()
        say({"event": "summed", "right": bool((tensor == options.ranks).all())})

        # Every rank must do the same number, so `count` drives it, and not the clock.
        return Work(lambda: distributed.all_reduce(tensor), warm_seconds=0.0)

    serve(options, prepare)
    if distributed.is_initialized():
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
