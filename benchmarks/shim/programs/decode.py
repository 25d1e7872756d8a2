"""A transformer that decodes a token at a time, each step one replay of a CUDA graph (12 layers, bfloat16)."""

from collections.abc import Callable

import torch
from torch.nn import functional

from benchmarks.shim.programs.loop import Work, parser, serve

LAYERS, WIDTH, HEADS, TOKENS, SEQUENCES = 12, 2048, 16, 1024, 8


def main() -> None:
    options = parser(__doc__).parse_args()
    serve(options, prepare)


def prepare() -> Work:
    layers = [layer() for _ in range(LAYERS)]
    state = torch.randn(SEQUENCES, 1, WIDTH, device="cuda", dtype=torch.bfloat16)

    def forward() -> torch.Tensor:
        x = state
        for one in layers:
            x = one(x)
        return x

    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            forward()
    return Work(graph.replay)


def layer() -> Callable[[torch.Tensor], torch.Tensor]:
    """Return one layer: attention over a full cache of keys and values, then the feed-forward part."""

    def weight(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda", dtype=torch.bfloat16) * 0.02

    to_qkv, to_out, up, down = (
        weight(3 * WIDTH, WIDTH), weight(WIDTH, WIDTH), weight(4 * WIDTH, WIDTH), weight(WIDTH, 4 * WIDTH)
    )  # fmt: skip
    keys, values = (weight(SEQUENCES, HEADS, TOKENS, WIDTH // HEADS) for _ in range(2))

    def forward(x: torch.Tensor) -> torch.Tensor:
        normal = functional.layer_norm(x, (WIDTH,))
        q, k, v = functional.linear(normal, to_qkv).chunk(3, dim=-1)
        q, k, v = (part.view(SEQUENCES, 1, HEADS, -1).transpose(1, 2) for part in (q, k, v))
        keys[:, :, -1:], values[:, :, -1:] = k, v
        seen = functional.scaled_dot_product_attention(q, keys, values).transpose(1, 2).reshape(SEQUENCES, 1, WIDTH)
        x = x + functional.linear(seen, to_out)
        hidden = functional.gelu(functional.linear(functional.layer_norm(x, (WIDTH,)), up))
        return x + functional.linear(hidden, down)

    return forward


if __name__ == "__main__":
    main()
