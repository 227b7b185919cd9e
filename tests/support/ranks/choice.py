"""What ranks do in tests of selections and given orders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import forebay
from support.ranks import nodes
from support.ranks.tiers import Step, step


def deliver(
    dataset: forebay.Dataset,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int = 2,
    state: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> tuple[list[Step], dict[str, Any]]:
    """Go through epochs; return ids and digest of each step, and the state after the last one."""
    found: list[Step] = []
    with forebay.Loader(dataset, world=forebay.World(**nodes.with_comm(dict(world))), **options) as loader:
        if state is not None:
            loader.load_state_dict(dict(state))
        for _ in range(epochs):
            for batch in loader:
                found.append(step(batch))
                if len(found) == stop:
                    return found, loader.state_dict()
        return found, loader.state_dict()
