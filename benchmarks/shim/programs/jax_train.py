"""Training with JAX: a perceptron of four layers under jit with Adam, each step waited for."""

import os
from typing import Any

# Otherwise each process takes three quarters of the GPU's memory.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax  # type: ignore[import-not-found,unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found,unused-ignore]

from benchmarks.shim.programs.loop import Work, parser, serve

ROWS, WIDTHS = 1024, (1024, 2048, 2048, 2048, 16)
RATE, FIRST, SECOND, LEAST = 1e-3, 0.9, 0.999, 1e-8
Tree = Any


def main() -> None:
    serve(parser(__doc__).parse_args(), prepare)


def prepare() -> Work:
    keys = jax.random.split(jax.random.key(1), len(WIDTHS) + 1)
    weights = [
        jax.random.normal(key, (before, after), jnp.float32) * before**-0.5
        for key, before, after in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=False)
    ]
    x = jax.random.normal(keys[-2], (ROWS, WIDTHS[0]), jnp.float32)
    y = jax.random.normal(keys[-1], (ROWS, WIDTHS[-1]), jnp.float32)
    zeros = [jnp.zeros_like(weight) for weight in weights]
    state: Tree = (weights, zeros, [jnp.zeros_like(weight) for weight in weights])
    trained = jax.jit(adam)

    def step() -> None:
        nonlocal state
        state, loss = trained(state, x, y)
        loss.block_until_ready()

    return Work(step, waits=True, warm_seconds=1.5)


def loss_of(weights: Tree, x: Tree, y: Tree) -> Tree:
    for weight in weights[:-1]:
        x = jax.nn.relu(x.astype(jnp.bfloat16) @ weight.astype(jnp.bfloat16))
    return jnp.mean((x.astype(jnp.float32) @ weights[-1] - y) ** 2)


def adam(state: Tree, x: Tree, y: Tree) -> Tree:
    """Return the next weights and their moments, and the loss."""
    weights, firsts, seconds = state
    loss, slopes = jax.value_and_grad(loss_of)(weights, x, y)
    firsts = [FIRST * first + (1 - FIRST) * slope for first, slope in zip(firsts, slopes, strict=True)]
    seconds = [SECOND * second + (1 - SECOND) * slope**2 for second, slope in zip(seconds, slopes, strict=True)]
    weights = [
        weight - RATE * first / (jnp.sqrt(second) + LEAST)
        for weight, first, second in zip(weights, firsts, seconds, strict=True)
    ]
    return (weights, firsts, seconds), loss


if __name__ == "__main__":
    main()
