"""Functions of samples for tests, and ranks that deliver what they return."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from support.ranks import work


def label(sample: Mapping[str, Any]) -> int:
    """Return the sum of the first bytes of a record, which tell its number."""
    return int(sample["data"][:4].astype(np.int64).sum())


def stop_at_sample_8(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Raise what an exhausted iterator raises."""
    if int(rng.bit_generator.state["state"]["counter"][3]) == 8:
        next(iter(()))
    return dict(sample)


def digest(sample: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Return facts that depend on the bytes of a sample and on its random numbers."""
    found = {name: np.frombuffer(np.asarray(value).tobytes(), np.uint8) for name, value in sample.items()}
    return {"sum": sum(int(value.sum()) for value in found.values()), "random": rng.random(2)}


def deliver(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int = 1,
    state: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    """Iterate epochs with :func:`digest`; return (id, sum, random) of each sample by step.

    With ``stop``, break off after that many steps and return the state of the last batch consumed.
    """
    with work.make(path, world, {**options, "transform": digest}) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found: list[list[tuple[int, int, tuple[float, ...]]]] = []
        after = loader.state_dict()
        for _ in range(epochs):
            for batch in loader:
                rows = zip(
                    batch.indices.tolist(), batch["sum"].tolist(), batch["random"].tolist(), strict=True
                )
                found.append([(number, total, tuple(random)) for number, total, random in rows])
                after = loader.state_at(batch.position)
                assert after == loader.state_dict()
                if len(found) == stop:
                    return {"found": found, "state": after}
        return {"found": found, "state": loader.state_dict()}
