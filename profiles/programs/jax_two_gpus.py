"""A network of six layers in JAX on two GPUs of one process, gradients averaged by NCCL.

nsys profile -t cuda,nvtx -s none --cuda-graph-trace=node -o jax_two_gpus python jax_two_gpus.py
"""

from __future__ import annotations

import json
import time

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

WIDTH, ROWS, LAYERS, STEPS = 4096, 8192, 6, 15
WHOLE, PARTED = PartitionSpec(), PartitionSpec("gpu")


def loss(weights: list[jax.Array], x: jax.Array) -> jax.Array:
    """Mean squared difference of the network's results from its inputs."""
    found = x
    for weight in weights:
        found = jax.nn.relu(found @ weight)
    return jnp.mean((found.astype(jnp.float32) - x.astype(jnp.float32)) ** 2)


def local(weights: list[jax.Array], x: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """One step of gradient descent on the rows of one GPU."""
    value, gradients = jax.value_and_grad(loss)(weights, x)
    gradients = jax.lax.pmean(gradients, "gpu")
    pairs = zip(weights, gradients, strict=True)
    return [w - (0.01 * g).astype(w.dtype) for w, g in pairs], jax.lax.pmean(value, "gpu")


def main() -> None:
    """Take three steps, then time fifteen and print what is known of them."""
    mesh = Mesh(np.array(jax.devices()), ("gpu",))
    key = jax.random.key(0)
    keys = [jax.random.fold_in(key, layer) for layer in range(LAYERS)]
    weights = [jax.random.normal(k, (WIDTH, WIDTH), jnp.bfloat16) * 0.02 for k in keys]
    weights = jax.device_put(weights, NamedSharding(mesh, WHOLE))
    x = jax.random.normal(key, (ROWS, WIDTH), jnp.bfloat16)
    x = jax.device_put(x, NamedSharding(mesh, PARTED))
    step = jax.jit(
        jax.shard_map(
            local, mesh=mesh, in_specs=(WHOLE, PARTED), out_specs=(WHOLE, WHOLE), check_vma=False
        )
    )
    for _ in range(3):
        weights, value = step(weights, x)
    value.block_until_ready()
    began = time.perf_counter()
    for _ in range(STEPS):
        weights, value = step(weights, x)
    value.block_until_ready()
    print(json.dumps({
        "step_s_profiled": (time.perf_counter() - began) / STEPS, "steps": STEPS,
        "jax": jax.__version__, "devices": len(jax.devices()),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
