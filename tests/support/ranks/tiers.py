"""What ranks do in tests of storage tiers."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

import forebay
import support
from forebay import _native
from support.ranks import nodes

Step = tuple[tuple[int, ...], str]


def step(batch: Any) -> Step:
    """Return the ids of a batch, and a digest of all its bytes."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(batch):
        for row in batch[name]:
            value = np.asarray(row)
            digest.update(f"{name} {value.dtype} {value.shape}".encode())
            digest.update(value.tobytes())
    return tuple(int(number) for number in batch.indices), digest.hexdigest()


def wait_for_copies() -> None:
    """Wait until the daemon has published nothing new for a moment."""
    last, looks = "", 0

    def is_quiet() -> bool:
        nonlocal last, looks
        now = json.dumps([level["sources"] for level in json.loads(_native.tiers_usage() or "{}")["levels"]])
        looks = looks + 1 if now == last else 0
        last = now
        return looks == 4

    support.wait_until(is_quiet, "copies")


def deliver(
    path: str,
    opening: Mapping[str, Any],
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int = 2,
    state: Mapping[str, Any] | None = None,
    stop: int | None = None,
    waits: bool = False,
    stays: bool = False,
) -> dict[str, Any]:
    """Go through epochs; return each step's ids and digest, and what the loader says of itself.

    With ``stop``, break off after that many steps in all; ``waits`` for copies after each epoch.
    With ``stays``, say "delivered", and count and close once told to.
    """
    found: list[Step] = []
    levels = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dataset = forebay.open(path, **opening)
        with forebay.Loader(
            dataset, world=forebay.World(**nodes.with_comm(dict(world))), **options
        ) as loader:
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(epochs):
                for batch in loader:
                    found.append(step(batch))
                    if len(found) == stop:
                        break
                if waits:
                    wait_for_copies()
                levels.append(loader.stats()["levels"])
                if len(found) == stop:
                    break
            if stays:
                pipe.send("delivered")
                pipe.recv()
            return {
                "steps": found,
                "levels": levels,
                "state": loader.state_dict(),
                "bad": loader.bad_samples(),
                "copied": loader.stats()["copied_bytes"],
                "uncopied": loader.stats()["uncopied_bytes"],
                "order": asdict(loader.config.order),
                "memory": asdict(loader.config.memory),
                "store": None if loader.config.store is None else asdict(loader.config.store),
                "kept": loader.stats()["kept_bytes"],
                "tiers": None if loader.config.tiers is None else asdict(loader.config.tiers),
                "by_epoch": loader.stats()["level_bytes_by_epoch"],
                "copies": loader.config.tiers is not None and loader.config.tiers.copies,
                "fallbacks": [fallback.wanted for fallback in loader.config.fallbacks],
                "warnings": [str(warning.message) for warning in caught],
            }


def of_system(path: str, system_file: str, world: Mapping[str, Any], pipe: Any) -> list[str]:
    """Make a loader on a node with this system file; return the paths of its tiers."""
    os.environ["FOREBAY_SYSTEM_CONFIG"] = system_file
    with forebay.Loader(path, batch_size=7, world=forebay.World(**nodes.with_comm(dict(world)))) as loader:
        tiers = loader.config.tiers
        return [level.path for level in tiers.levels] if tiers is not None else []
