"""The loop of suspended.py in JAX: every step can be compared with that of another run, to the bit.

python suspended_jax.py jax GIB STEPS
"""

import faulthandler
import os
import signal
import sys
import time
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0"
)

import jax  # type: ignore[import-not-found,unused-ignore]
import jax.numpy as jnp  # type: ignore[import-not-found,unused-ignore]

GIB, STEPS = float(sys.argv[2]), int(sys.argv[3])
STEP_SECONDS = 0.02
faulthandler.register(signal.SIGUSR1, all_threads=True)


def main() -> None:
    """Train, and print one line a step."""
    block = jnp.arange(int(GIB * (1 << 28)), dtype=jnp.float32)
    first, second = jax.random.split(jax.random.key(7))
    weights: Any = (jax.random.normal(first, (512, 1024)) * 0.04, jax.random.normal(second, (1024, 512)) * 0.03)

    def loss(weights: Any, batch: Any) -> Any:
        return jnp.mean((jax.nn.relu(batch @ weights[0]) @ weights[1] - batch) ** 2)

    def train(weights: Any, batch: Any) -> Any:
        found, slopes = jax.value_and_grad(loss)(weights, batch)
        return found, tuple(weight - 0.01 * slope for weight, slope in zip(weights, slopes, strict=True))

    step = jax.jit(train)
    raised = jax.jit(lambda block: block + 1, donate_argnums=0)
    summed = jax.jit(lambda block: jnp.sum(block[:: 1 << 12]))
    for at in range(STEPS):
        batch = jax.random.normal(jax.random.key(at), (64, 512))
        found, weights = step(weights, batch)
        block = raised(block)
        time.sleep(STEP_SECONDS)
        sums = float(summed(block)), float(jnp.sum(weights[0]) + jnp.sum(weights[1]))
        print("step", at, float(found).hex(), sums[0].hex(), sums[1].hex(), flush=True)


main()
