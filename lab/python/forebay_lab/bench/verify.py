"""Verification that all rows delivered the same samples, by digests.

In a verification run each rank keeps, for each delivered sample, its id and a digest of 128 bits of
(id, bytes). The runner joins the ranks of a row and computes:

- `digest_steps`: over the ids and digests of each step, by rank and slot. Rows of one order must
  agree in it, and in the digest of each step, so that the bench can name the first step that
  differs.
- `digest_epoch`: the sum, modulo 2^128, of the digests of all distinct samples of an epoch, in any
  order. All rows of a dataset must agree in it. Where samples from the start fill the last step, a
  repeated sample counts once, and must have the same digest both times. A truncated epoch has none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Digests", "Verified", "compare", "join"]

_DIGEST_BYTES = 16
_WORDS = 4
_WORD_BITS = 32


def sample_digest(sample: int, record: Any) -> bytes:
    """Digest a sample's id and bytes."""
    view = np.ascontiguousarray(record).data if isinstance(record, np.ndarray) else memoryview(record)
    return hashlib.blake2b(
        view.cast("B") if view.nbytes else b"",
        digest_size=_DIGEST_BYTES,
        person=int(sample).to_bytes(8, "little"),
    ).digest()


class Digests:
    """What one rank keeps."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._digests: list[bytes] = []
        self._steps: list[int] = []
        self._epochs: list[int] = []

    def add_step(self, ids: Any, records: Any) -> None:
        """Add the samples of a step."""
        if len(ids) != len(records):
            raise ValueError(f"a step: expected a record for each of {len(ids)} ids, found {len(records)}")
        for sample, record in zip(ids, records, strict=True):
            self._ids.append(int(sample))
            self._digests.append(sample_digest(sample, record))
        self._steps.append(len(ids))

    def end_epoch(self) -> None:
        """Note that the epoch ended with the last step."""
        self._epochs.append(len(self._steps))

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return all digests, for a file."""
        return {
            "ids": np.array(self._ids, np.int64),
            "digests": np.frombuffer(b"".join(self._digests), np.uint32).reshape(-1, _WORDS),
            "steps": np.array(self._steps, np.int64),
            "epochs": np.array(self._epochs, np.int64),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What a row delivered."""

    steps: tuple[bytes, ...]
    """A digest for each step."""
    epochs: tuple[int | None, ...]
    """The sum for each epoch; None where a sample was not delivered."""
    fault: str | None = None
    """What was wrong in the row itself."""

    @property
    def digest_steps(self) -> str:
        """One digest of all steps."""
        return hashlib.blake2b(b"".join(self.steps), digest_size=_DIGEST_BYTES).hexdigest()

    @property
    def digest_epoch(self) -> str | None:
        """The sum of the first epoch."""
        whole = self.epochs[0] if self.epochs else None
        return None if whole is None else f"{whole:032x}"


def join(ranks: Sequence[dict[str, npt.NDArray[Any]]], samples: int) -> Verified:
    """Join what the ranks of a row kept; `samples` is the size of the dataset."""
    counts = {len(rank["steps"]) for rank in ranks}
    if len(counts) != 1:
        return Verified(
            steps=(), epochs=(), fault=f"the ranks took different numbers of steps: {sorted(counts)}"
        )
    edges = [np.concatenate([[0], np.cumsum(rank["steps"])]) for rank in ranks]
    steps = []
    for step in range(len(ranks[0]["steps"])):
        digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for rank, edge in zip(ranks, edges, strict=True):
            part = slice(edge[step], edge[step + 1])
            digest.update(rank["ids"][part].tobytes() + rank["digests"][part].tobytes())
        steps.append(digest.digest())
    epochs: list[int | None] = []
    fault = None
    first = 0
    for end in ranks[0]["epochs"]:
        parts = [slice(edge[first], edge[end]) for edge in edges]
        ids = np.concatenate([rank["ids"][part] for rank, part in zip(ranks, parts, strict=True)])
        digests = np.concatenate([rank["digests"][part] for rank, part in zip(ranks, parts, strict=True)])
        whole, wrong = _epoch(ids, digests, samples)
        fault = fault or wrong
        epochs.append(whole)
        first = end
    if len({one for one in epochs if one is not None}) > 1:
        fault = fault or "the epochs hold different samples"
    return Verified(steps=tuple(steps), epochs=tuple(epochs), fault=fault)


def _epoch(
    ids: npt.NDArray[np.int64], digests: npt.NDArray[np.uint32], samples: int
) -> tuple[int | None, str | None]:
    """Return the sum over distinct samples, if all are present, and what was wrong with them."""
    if len(ids) and (ids.min() < 0 or ids.max() >= samples):
        return None, f"expected sample ids from 0 to {samples - 1}, found {ids.min()} to {ids.max()}"
    known, first, back = np.unique(ids, return_index=True, return_inverse=True)
    different = np.flatnonzero((digests[first][back.reshape(-1)] != digests).any(axis=1))
    if len(different):
        return None, f"sample {ids[different[0]]} was handed out twice, with different bytes"
    if len(known) < samples:
        return None, None
    words = digests[first].astype(np.uint64).sum(axis=0)
    return sum(int(word) << (_WORD_BITS * place) for place, word in enumerate(words)) % 2**128, None


def compare(rows: dict[str, tuple[str, Verified]]) -> list[dict[str, Any]]:
    """Compare rows with each other.

    Parameters
    ----------
    rows
        Name of the row → its order, and what it delivered.

    Returns
    -------
    list of dict
        ``rows``, ``what`` (``steps`` or ``epoch``), ``equal``, and ``difference``, a text, or None.
    """
    orders: dict[str, list[str]] = {}
    for name, (order, _) in rows.items():
        orders.setdefault(order, []).append(name)
    found = [
        _compared(names, "steps", _first_difference({name: rows[name][1] for name in names}))
        for names in orders.values()
        if len(names) > 1
    ]
    whole = [name for name, (_, one) in rows.items() if one.digest_epoch is not None]
    if len(whole) > 1:
        base = rows[whole[0]][1].digest_epoch
        other = next((name for name in whole if rows[name][1].digest_epoch != base), None)
        difference = (
            None if other is None else f"{other} hands out other samples over an epoch than {whole[0]}"
        )
        found.append(_compared(whole, "epoch", difference))
    return found


def _compared(names: list[str], what: str, difference: str | None) -> dict[str, Any]:
    return {"rows": names, "what": what, "equal": difference is None, "difference": difference}


def _first_difference(rows: dict[str, Verified]) -> str | None:
    (base, wanted), *others = rows.items()
    for name, one in others:
        if len(one.steps) != len(wanted.steps):
            return f"{base} took {len(wanted.steps)} steps, {name} {len(one.steps)}"
        for step, (mine, theirs) in enumerate(zip(wanted.steps, one.steps, strict=True)):
            if mine != theirs:
                return f"{name} differs from {base} at step {step}"
    return None
