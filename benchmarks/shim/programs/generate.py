"""Text generation with the library transformers: a small Llama of random weights, greedily, 64 tokens a call.

An iteration is one token of each sequence. ``generate`` makes all tokens of a call before it returns, so it runs in a
thread that is resumed for each token.
"""

import threading
from typing import Any

import torch
from transformers import (  # type: ignore[import-not-found,unused-ignore]
    LlamaConfig,
    LlamaForCausalLM,
    LogitsProcessor,
    LogitsProcessorList,
)

from benchmarks.shim.programs.loop import DEVICE, Work, parser, serve

LAYERS, WIDTH, HEADS, WORDS = 12, 1024, 16, 32000
SEQUENCES, PROMPT, NEW = 4, 64, 64


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument("--layers", type=int, default=LAYERS, help=f"of the model ({LAYERS})")
    options = arguments.parse_args()
    serve(options, lambda: prepare(options.layers))


def prepare(layers: int) -> Work:
    config = LlamaConfig(
        hidden_size=WIDTH, intermediate_size=WIDTH * 11 // 4, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=HEADS, vocab_size=WORDS, max_position_embeddings=2048,
    )  # fmt: skip
    model = LlamaForCausalLM(config).to(device=DEVICE, dtype=torch.bfloat16).eval()
    return Work(Tokens(model).step, waits=True, warm_seconds=1.5)


class Tokens:
    """Endless generation, a token a step."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._go, self._reached = threading.Semaphore(0), threading.Semaphore(0)
        self._error: BaseException | None = None
        threading.Thread(target=self._generate, daemon=True).start()

    def step(self) -> None:
        """Resume the thread until it has the next token's scores."""
        self._go.release()
        self._reached.acquire()
        if self._error is not None:
            raise self._error

    def pause(self) -> None:
        """Signal that a token is ready, and wait for the next step."""
        self._reached.release()
        self._go.acquire()

    def _generate(self) -> None:
        self._go.acquire()
        try:
            prompt = torch.randint(1, WORDS, (SEQUENCES, PROMPT), device=DEVICE)
            seen = torch.ones_like(prompt)
            watched = LogitsProcessorList([EachToken(self)])
            while True:
                self._model.generate(
                    input_ids=prompt, attention_mask=seen, logits_processor=watched, do_sample=False, use_cache=True,
                    max_new_tokens=NEW, min_new_tokens=NEW, eos_token_id=None, pad_token_id=0,
                )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - told by the thread that waits for it
            self._error = error
            self._reached.release()


class EachToken(LogitsProcessor):  # type: ignore[misc,unused-ignore]
    """A criterion that pauses at each token and never stops the generation."""

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self._tokens.pause()
        return scores


if __name__ == "__main__":
    main()
