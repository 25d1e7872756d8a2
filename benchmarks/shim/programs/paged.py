"""A decode server with continuous batching and a paged cache of keys and values; a step is a CUDA graph and a read.

Each step makes one token for every sequence of the batch: pages of keys and values are gathered by a block table, the
likeliest token is chosen on the GPU and read by the processor, which ends sequences, frees their pages and lets others
in. Prompts are taken as cached. ``ran`` tells ``tokens`` and the steps' times.
"""

import random
import time
from collections.abc import Callable, Sequence

import torch
from torch.nn import functional

from benchmarks.shim.programs.loop import DEVICE, Work, parser, serve

LAYERS, WIDTH, HEADS, WORDS = 12, 2048, 16, 32000
SEQUENCES, PAGE, PAGES_EACH = 32, 16, 32
PROMPTS, LENGTHS = (64, 256), (16, 192)
# The probability that a free place is taken in a step: most places are in use.
ARRIVES = 0.25
TYPE = torch.bfloat16


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--layers", type=int, default=LAYERS, help=f"of the model ({LAYERS})")
    options = arguments.parse_args()
    # No weight needs a gradient, so no block needs `no_grad`.
    serve(options, lambda: Server(options.layers).work())


def make_weight(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=TYPE) * 0.02


class Layer:
    """Attention over the pages of each sequence, then the feed-forward part."""

    def __init__(self) -> None:
        self._to_qkv, self._to_out = make_weight(3 * WIDTH, WIDTH), make_weight(WIDTH, WIDTH)
        self._up, self._down = make_weight(4 * WIDTH, WIDTH), make_weight(WIDTH, 4 * WIDTH)
        pages = SEQUENCES * PAGES_EACH
        self._keys, self._values = (make_weight(pages, PAGE, HEADS, WIDTH // HEADS) for _ in range(2))

    def forward(self, x: torch.Tensor, batch: "Batch") -> torch.Tensor:
        normal = functional.layer_norm(x, (WIDTH,))
        q, k, v = (part.view(SEQUENCES, HEADS, -1) for part in functional.linear(normal, self._to_qkv).chunk(3, -1))
        at = batch.lengths
        page = batch.table.gather(1, (at // PAGE).unsqueeze(1)).squeeze(1)
        self._keys[page, at % PAGE], self._values[page, at % PAGE] = k, v
        keys, values = (
            cache[batch.table].flatten(1, 2).transpose(1, 2) for cache in (self._keys, self._values)
        )  # fmt: skip
        seen = functional.scaled_dot_product_attention(q.unsqueeze(2), keys, values, attn_mask=batch.mask)
        x = x + functional.linear(seen.reshape(SEQUENCES, WIDTH), self._to_out)
        hidden = functional.gelu(functional.linear(functional.layer_norm(x, (WIDTH,)), self._up))
        return x + functional.linear(hidden, self._down)


class Batch:
    """Inputs of a step at fixed addresses: tokens, lengths and block table of every place."""

    def __init__(self) -> None:
        self.tokens = torch.zeros(SEQUENCES, dtype=torch.long, device=DEVICE)
        self.lengths = torch.zeros(SEQUENCES, dtype=torch.long, device=DEVICE)
        self.table = torch.zeros(SEQUENCES, PAGES_EACH, dtype=torch.long, device=DEVICE)
        self.mask = torch.ones(1, dtype=torch.bool, device=DEVICE)

    def load(self, tokens: Sequence[int], lengths: Sequence[int], table: Sequence[Sequence[int]]) -> None:
        """Copy the processor's data to the GPU."""
        self.tokens.copy_(torch.tensor(tokens), non_blocking=True)
        self.lengths.copy_(torch.tensor(lengths), non_blocking=True)
        self.table.copy_(torch.tensor(table), non_blocking=True)


class Server:
    """The model, its pages and the sequences in its batch."""

    def __init__(self, layers: int) -> None:
        self._chance = random.Random(1)  # noqa: S311 - lengths, not secrets
        self._layers = [Layer() for _ in range(layers)]
        self._words = make_weight(WORDS, WIDTH)
        self._batch, self._next = Batch(), torch.zeros(SEQUENCES, dtype=torch.long, device=DEVICE)
        self._free = list(range(SEQUENCES * PAGES_EACH))
        self._pages: list[list[int]] = [[] for _ in range(SEQUENCES)]
        self._tokens, self._lengths, self._left = ([0] * SEQUENCES for _ in range(3))
        self._launch = self._capture()
        self._begin()

    def work(self) -> Work:
        return Work(self._step, waits=True, begin=self._begin, finish=self._finish)

    def _begin(self) -> None:
        self._made, self._took = 0, list[float]()

    def _finish(self) -> dict[str, float]:
        took = sorted(self._took) or [0.0]
        p50, p99 = (1e3 * took[int(part * (len(took) - 1))] for part in (0.5, 0.99))
        return {"tokens": self._made, "p50_ms": p50, "p99_ms": p99}

    def _forward(self) -> None:
        batch = self._batch
        places = torch.arange(PAGES_EACH * PAGE, device=DEVICE)
        batch.mask = (places <= batch.lengths.unsqueeze(1)).view(SEQUENCES, 1, 1, -1)
        x = self._words[batch.tokens]
        for layer in self._layers:
            x = layer.forward(x, batch)
        self._next.copy_(functional.linear(functional.layer_norm(x, (WIDTH,)), self._words).argmax(-1))

    def _capture(self) -> Callable[[], None]:
        """Return a function that launches a step: a CUDA graph's replay, if there is a GPU."""
        if DEVICE == "cpu":
            return self._forward
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._forward()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._forward()
        replay: Callable[[], None] = graph.replay
        return replay

    def _step(self) -> None:
        """Admit sequences, make a token for each, end those that are complete."""
        begun = time.monotonic()
        self._admit()
        table = [pages + [0] * (PAGES_EACH - len(pages)) for pages in self._pages]
        self._batch.load(self._tokens, self._lengths, table)
        self._launch()
        made = self._next.tolist()
        for place, token in enumerate(made):
            if self._left[place]:
                self._append(place, token)
        self._took.append(time.monotonic() - begun)

    def _admit(self) -> None:
        for place in range(SEQUENCES):
            if not self._left[place] and self._chance.random() < ARRIVES:
                self._lengths[place] = self._chance.randint(*PROMPTS)
                self._left[place] = self._chance.randint(*LENGTHS)
                self._tokens[place] = self._chance.randrange(WORDS)
                self._pages[place] = [self._free.pop() for _ in range(self._lengths[place] // PAGE + 1)]

    def _append(self, place: int, token: int) -> None:
        self._made += 1
        self._tokens[place] = token
        self._lengths[place] += 1
        self._left[place] -= 1
        if not self._left[place]:
            self._free += self._pages[place]
            self._pages[place], self._lengths[place] = [], 0
        elif self._lengths[place] // PAGE == len(self._pages[place]):
            self._pages[place].append(self._free.pop())


if __name__ == "__main__":
    main()
