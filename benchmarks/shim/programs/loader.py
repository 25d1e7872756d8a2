"""Training with data from a DataLoader, whose workers are forked from this process after it has used the GPU."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.shim.programs.loop import Work, parser, serve

IMAGES, PIXELS, CLASSES, BATCH, WIDTH = 8192, 3072, 10, 256, 4096


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--workers", type=int, default=4, help="forked processes (4)")
    options = arguments.parse_args()
    serve(options, lambda: prepare(options.workers))


def prepare(workers: int) -> Work:
    data = TensorDataset(torch.randn(IMAGES, PIXELS), torch.randint(CLASSES, (IMAGES,)))
    layers = [nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)]
    model = nn.Sequential(*layers).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    # The GPU is in use before the fork: a shim may fail in the child.
    model(torch.zeros(1, PIXELS, device="cuda"))
    loader = DataLoader(data, BATCH, num_workers=workers, multiprocessing_context="fork", pin_memory=True)

    def batches() -> Iterator[list[torch.Tensor]]:
        while True:
            yield from loader

    endless = batches()

    def step() -> None:
        x, y = (part.cuda(non_blocking=True) for part in next(endless))
        optimizer.zero_grad(set_to_none=True)
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()

    return Work(step)


if __name__ == "__main__":
    main()
