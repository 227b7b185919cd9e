"""States of loaders that come back from a checkpoint: whether one fits, and if not, what would."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from forebay._core import option_error

STATE_VERSION = 1

# What a position is counted in; a checkpoint is a file like any other, and may be damaged.
_MOST = (1 << 63) - 1
_MOST_BATCH = 1 << 32
_DAMAGED = "the state is not as state_dict() wrote it; take that of another checkpoint"


def check_state(state: Mapping[str, Any], own: Mapping[str, Any], ranks: int, steps: int) -> dict[str, Any]:
    """Return the parameters of the order that a state asks for.

    Parameters
    ----------
    state : mapping
        What `Loader.state_dict` once returned.
    own : mapping
        What it returns now.
    ranks, steps : int
        Number of ranks; steps per epoch.

    Raises
    ------
    OptionError
        If the state does not fit this loader; the message says what would.
    """
    if not isinstance(state, Mapping):
        raise option_error(
            f"load_state_dict: expected what state_dict() returned, found {type(state).__name__}"
        )
    if missing := own.keys() - state.keys():
        raise option_error(f"load_state_dict: the state lacks {', '.join(sorted(missing))}")
    for key in ("version", "kind", "last", "seed", "fingerprint"):
        if state[key] != own[key]:
            raise option_error(
                f"load_state_dict: {key} is {state[key]!r} in the state and {own[key]!r} in this loader",
                "the data set has changed since the state was written" if key == "fingerprint" else None,
            )
    whole = _number(state, "global_batch", 1, _MOST_BATCH)
    lanes = _number(state, "lanes", 1, whole)
    if whole % lanes:
        raise option_error(
            f"load_state_dict: lanes: expected a divisor of the global batch {whole}, found {lanes}", _DAMAGED
        )
    if own["kind"] == "contiguous" and lanes != ranks:
        raise option_error(
            f"load_state_dict: the order contiguous cannot go on with another number of ranks: the state is of {lanes}, "
            f"this job has {ranks}, and each rank walks a region that depends on it",
            f"resume on {lanes} ranks; the orders sequential, shuffle and group can be resumed on others",
        )
    if lanes % ranks:
        raise option_error(
            f"load_state_dict: {ranks} ranks cannot share the {lanes} lanes of the state",
            f"numbers of ranks that can: {', '.join(map(str, _divisors(lanes)))}",
        )
    if whole != own["global_batch"]:
        raise option_error(
            f"load_state_dict: the global batch is {whole} in the state and {own['global_batch']} here "
            f"({own['global_batch'] // ranks} on each of {ranks} ranks)",
            f"make the loader with batch_size={whole // ranks} or global_batch={whole}",
        )
    _number(state, "epoch", 0, _MOST // max(1, steps) - 1)
    _number(state, "step", 0, steps)
    wanted: dict[str, Any] = {"lanes": lanes}
    for name in ("samples", "window"):
        key = f"group_{name}"
        # Orders that have no groups say None.
        wanted[name] = None if own[key] is None and state[key] is None else _number(state, key, 1, _MOST)
    return wanted


def _divisors(number: int) -> list[int]:
    small = [one for one in range(1, math.isqrt(number) + 1) if number % one == 0]
    return sorted({*small, *(number // one for one in small)})


def _number(state: Mapping[str, Any], key: str, low: int, high: int) -> int:
    """Return a whole number of a state."""
    value = state[key]
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        limit = "" if high >= _MOST_BATCH else f" to {high}"
        raise option_error(
            f"load_state_dict: {key}: expected an integer from {low}{limit}, found {value!r}", _DAMAGED
        )
    return value
