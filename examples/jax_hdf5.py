"""Train on HDF5 volumes with JAX, each batch divided among the devices.

    pip install 'jax[cpu]' h5py
    XLA_FLAGS=--xla_force_host_platform_device_count=2 python examples/jax_hdf5.py

On several hosts, each process calls `jax.distributed.initialize()` first, and the loader gets
`world=forebay.jax.world()`.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import forebay.jax

VOLUMES, SIZE, BATCH, EPOCHS = 32, 16, 4, 2
# The state is saved after this step, and the training goes on from there.
SAVE_AT = 5


@jax.jit
def step(weights: jax.Array, batch: dict[str, jax.Array]) -> jax.Array:
    """Take a step of gradient descent on the mean of each volume."""

    def loss(weights: jax.Array) -> jax.Array:
        means = batch["volume"].mean(axis=(1, 2, 3))
        return ((weights[0] * means + weights[1] - batch["target"]) ** 2).mean()

    return weights - 0.1 * jax.grad(loss)(weights)


def train(path: Path, state: dict[str, Any] | None = None, start: Any = (0.0, 0.0)) -> tuple[Any, Any]:
    """Train for all epochs; return the weights, and the state and weights after one step."""
    weights, saved = jnp.asarray(start), None
    mesh = Mesh(np.array(jax.devices()), ("data",))
    sharding = NamedSharding(mesh, PartitionSpec("data"))
    with forebay.jax.loader(
        path, BATCH, order="shuffle", sharding=sharding, expected_epochs=EPOCHS
    ) as loader:
        if state is not None:
            loader.load_state_dict(state)
        for _ in range(loader.loader.epoch, EPOCHS):
            for batch in loader:
                weights = step(weights, batch)
                if loader.position == (0, SAVE_AT):
                    saved = json.dumps(loader.state_dict()), weights.tolist()
    return weights, saved


def main() -> None:
    """Compare a training that is resumed with one that is not."""
    with tempfile.TemporaryDirectory() as folder:
        path, rng = Path(folder) / "train.h5", np.random.default_rng(0)
        with h5py.File(path, "w") as file:
            volumes = rng.random((VOLUMES, SIZE, SIZE, SIZE), np.float32)
            file.create_dataset("volume", data=volumes, chunks=(1, SIZE, SIZE, SIZE), compression="gzip")
            file["target"] = rng.random(VOLUMES, np.float32)
        whole, (state, weights) = train(path)
        resumed, _ = train(path, json.loads(state), weights)
        assert (whole == resumed).all()
        print(f"{len(jax.devices())} devices, weights {whole}: the same when resumed")


if __name__ == "__main__":
    main()
