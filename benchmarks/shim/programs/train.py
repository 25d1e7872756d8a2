"""Training of a small transformer on made-up tokens (6 layers, AdamW, bfloat16); compiled on request."""

import torch
from torch import nn
from torch.nn import functional

from benchmarks.shim.programs.loop import DEVICE, Work, parser, say, serve

LAYERS, WIDTH, HEADS, TOKENS, SEQUENCES, WORDS = 6, 512, 8, 256, 16, 8192


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--compile", action="store_true", help='torch.compile(mode="reduce-overhead"): CUDA graphs')
    arguments.add_argument("--item", action="store_true", help="read the loss after each step, as a progress bar does")
    options = arguments.parse_args()
    serve(options, lambda: prepare(compiled=options.compile, item=options.item))


def prepare(*, compiled: bool, item: bool = False) -> Work:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(WORDS, WIDTH),
        nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False),
        nn.Linear(WIDTH, WORDS),
    ).to(DEVICE)  # fmt: skip
    tokens = torch.randint(WORDS, (SEQUENCES, TOKENS + 1), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def losses(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())

    forward = torch.compile(losses, mode="reduce-overhead") if compiled else losses
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    told = 0

    def step() -> None:
        nonlocal told
        optimizer.zero_grad(set_to_none=True)
        loss = forward(inputs, targets)
        loss.backward()
        optimizer.step()
        told += 1
        if item:
            loss.item()
        # The first and a later loss: a falling loss shows that it computes.
        if told in {1, 50}:
            say({"event": "loss", "step": told, "loss": float(loss.detach())})

    return Work(step, waits=item, warm_seconds=2.0)


if __name__ == "__main__":
    main()
