"""Training of a convolutional network on made-up images: a small one, or one of the size of ResNet-50."""

import itertools
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

from benchmarks.shim.programs.loop import Work, parser, serve

CLASSES = 1000
# Blocks a stage and their inner width, as in ResNet-50.
STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
EXPANSION = 4
# Images a step, and their edge in pixels.
SIZES = {"small": (256, 32), "large": (64, 224)}
# Steps whose time on the GPU is measured, queued behind a kernel that lasts until all of them are.
MEASURED_STEPS, BEHIND_CYCLES = 5, 400_000_000
Forward = Callable[[torch.Tensor], torch.Tensor]


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--model", choices=sorted(SIZES), default="small", help="(small)")
    arguments.add_argument(
        "--need", type=float, help="begin a step only so often that alone it would keep the GPU busy for PERCENT"
    )
    options = arguments.parse_args()
    serve(options, lambda: prepare(options.model, options.need))


def prepare(model: str, need: float | None = None) -> Work:
    modules, forward = small() if model == "small" else large()
    modules.to("cuda", memory_format=torch.channels_last)
    images, edge = SIZES[model]
    x = torch.randn(images, 3, edge, edge, device="cuda").contiguous(memory_format=torch.channels_last)
    y = torch.randint(CLASSES, (images,), device="cuda")
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = functional.cross_entropy(forward(x), y)
        loss.backward()
        optimizer.step()

    return Work(step if need is None else pace(step, need), warm_seconds=1.5)


def pace(step: Callable[[], None], need: float) -> Callable[[], None]:
    """Return the step with a wait for its data, so that the GPU is busy for ``need`` percent of the time."""
    for _ in range(MEASURED_STEPS):
        step()
    interval = 100 * measure_gpu_seconds(step) / need
    due = 0.0

    def step_when_due() -> None:
        nonlocal due
        time.sleep(max(0.0, due - time.monotonic()))
        # What a step lost to a neighbour is not caught up.
        due = time.monotonic() + interval
        step()

    return step_when_due


def measure_gpu_seconds(step: Callable[[], None]) -> float:
    """Return the time that one step takes on the GPU where it never waits for the processor."""
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    torch.cuda._sleep(BEHIND_CYCLES)  # noqa: SLF001 - PyTorch's own way to hold a stream
    begin.record()
    for _ in range(MEASURED_STEPS):
        step()
    end.record()
    end.synchronize()
    milliseconds: float = begin.elapsed_time(end)
    return milliseconds / 1000 / MEASURED_STEPS


def small() -> tuple[nn.Module, Forward]:
    widths = (3, 64, 128, 256)
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, CLASSES))
    return network, network


def large() -> tuple[nn.Module, Forward]:
    """Return bottleneck blocks with shortcuts."""
    stem = nn.Sequential(nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1))
    blocks: list[tuple[nn.Module, nn.Module]] = []
    before = 64
    for stage, (count, width) in enumerate(STAGES):
        for number in range(count):
            stride = 2 if stage and not number else 1
            blocks.append(bottleneck(before, width, stride))
            before = width * EXPANSION
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))

    def forward(x: torch.Tensor) -> torch.Tensor:
        x = stem(x)
        for body, shortcut in blocks:
            x = functional.relu(body(x) + shortcut(x))
        return head(x)

    return nn.ModuleList([stem, *(part for block in blocks for part in block), head]), forward


def bottleneck(before: int, width: int, stride: int) -> tuple[nn.Module, nn.Module]:
    after = width * EXPANSION
    body = nn.Sequential(
        nn.Conv2d(before, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, after, 1, bias=False), nn.BatchNorm2d(after),
    )  # fmt: skip
    same = before == after and stride == 1
    down = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))
    return body, nn.Identity() if same else down


if __name__ == "__main__":
    main()
