"""Training of ResNet-50 of the library transformers, random weights and images (bfloat16)."""

import torch
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    ResNetConfig,
    ResNetForImageClassification,
)

from benchmarks.shim.programs.loop import DEVICE, Work, parser, serve

CLASSES = 1000


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--images", type=int, default=32, help="a step (32)")
    arguments.add_argument("--edge", type=int, default=224, help="of an image, in pixels (224)")
    options = arguments.parse_args()
    serve(options, lambda: prepare(options.images, options.edge))


def prepare(images: int, edge: int) -> Work:
    # The configuration's own values are those of ResNet-50.
    model = ResNetForImageClassification(ResNetConfig(num_labels=CLASSES)).to(DEVICE).train()
    x = torch.randn(images, 3, edge, edge, device=DEVICE)
    y = torch.randint(CLASSES, (images,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = model(pixel_values=x, labels=y).loss
        loss.backward()
        optimizer.step()

    return Work(step, warm_seconds=1.5)


if __name__ == "__main__":
    main()
