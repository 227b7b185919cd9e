"""What storage tiers would do for a row that was measured without them.

The engine's own forecast (``forebay-plan``, `tier_forecast`) computes the bytes. It takes the
dataset, the order and the nodes from the result. Assumed are an empty tier on each node, of the
size of the dataset but at most `ASSUMED_TIER_BYTES`, `ASSUMED_EPOCHS` if the run had one epoch, as
a bench is shorter than a training, and a page cache that keeps nothing from one epoch to the next.
The speed of such a tier is not known, so the time saved is a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay import _native
from forebay._core import OptionError
from forebay_lab.report import numbers
from forebay_lab.report.data import dicts, number

if TYPE_CHECKING:
    from forebay_lab.report.data import Result, Row

__all__ = ["ASSUMED_EPOCHS", "ASSUMED_TIER_BYTES", "TierOutlook", "of"]

ASSUMED_TIER_BYTES = 200 << 30
"""Free space that local disks of compute nodes often have."""
ASSUMED_EPOCHS = 10
MOST_EPOCHS = 10_000
"""Trainings are shorter."""

_ORDERS = ("sequential", "contiguous", "shuffle", "local-shuffle", "group")
_NOT_TIERS = ("source", "page_cache")


@dataclass(frozen=True, slots=True)
class TierOutlook:
    """The forecast of one row."""

    nodes: int
    epochs: int
    is_epochs_assumed: bool
    tier_bytes: int
    """Of each node."""
    whole_bytes: int
    """Bytes of a tier that holds all that a node reads."""
    copies: bool
    """Whether copies save more reads than they cost in these epochs."""
    first_share: float
    """Source bytes of epoch 1 over those without a tier."""
    kept_share: float
    """Share of the source bytes of epochs 2 and later that tiers would save."""
    saved_seconds_share: float
    """Largest share of the time that they could save."""
    fits_page_cache: bool
    """Whether what a node reads is at most half of its memory."""

    def words(self) -> str:
        """Return the forecast as sentences."""
        epochs = f"{self.epochs} epochs{' (assumed)' if self.is_epochs_assumed else ''}"
        if not self.copies:
            return (
                f"In this order the copies for tiers of {self.nodes} nodes would cost more reads than they save "
                f"in {epochs}."
            )
        later = "epoch 2" if self.epochs == 2 else f"epochs 2 to {self.epochs}"
        later += " (assumed)" if self.is_epochs_assumed else ""
        tier = f"An empty tier of {numbers.text('bytes', self.tier_bytes)} on each node"
        kept = f"{tier} would keep {numbers.percent(self.kept_share)} of the bytes of {later} off the source"
        whole = numbers.text("bytes", self.whole_bytes)
        if self.whole_bytes > self.tier_bytes:
            kept += f" (its size is assumed; all that a node reads needs {whole})"
        first = ""
        if self.first_share > 1.005:
            first = f" Epoch 1 would read {self.first_share:.2f} times the bytes, for the copies."
        cached = " The page cache may do the same: the data are at most half of the memory."
        return (
            f"{kept}.{first} If it is never slower than the source, {epochs} take at most "
            f"{numbers.percent(self.saved_seconds_share)} less time.{cached if self.fits_page_cache else ''}"
        )


def of(result: Result, row: Row, *, rate_mib_s: float | None, computing_s: float) -> TierOutlook | None:
    """Return the forecast of a row; None where facts are missing, or the row had tiers.

    Parameters
    ----------
    result, row
        What was measured.
    rate_mib_s
        What the storage gave all nodes together.
    computing_s
        Computing time of the whole run.
    """
    order = row.name.partition("@")[2].partition("+")[0]
    dataset = result.part("dataset")
    samples, data_bytes = _count(dataset.get("samples")), _count(dataset.get("bytes"))
    batch, nodes, steps = (_count(result.values.get(key)) for key in ("global_batch", "nodes", "steps"))
    if not (samples and data_bytes and batch and nodes and steps and rate_mib_s) or order not in _ORDERS:
        return None
    if _has_tiers(row):
        return None
    ran = _count(result.values.get("epochs")) or 1
    epochs = min(ran, MOST_EPOCHS) if ran > 1 else ASSUMED_EPOCHS
    groups = _count(row.shuffle_quality.get("groups"))
    asked: dict[str, Any] = {
        "order": order,
        "group_samples": None if groups is None else math.ceil(samples / groups),
        "samples": samples,
        "global_batch": batch,
        "nodes": nodes,
        "data_bytes": data_bytes,
        "epochs": epochs,
        "source_rate": rate_mib_s * (1 << 20),
        "compute_s": computing_s / (ran * steps) * math.ceil(samples / batch),
    }
    try:
        whole = _native.tier_forecast(**asked, tier_bytes=data_bytes)["whole_bytes"]
        tier_bytes = min(whole, ASSUMED_TIER_BYTES)
        found = _native.tier_forecast(**asked, tier_bytes=tier_bytes)
    except OptionError:
        # No order has these numbers.
        return None
    memory = _count(result.values.get("node_memory_bytes")) or _count(
        result.part("machine").get("memory_bytes")
    )
    first, *later = found["source_bytes"]
    return TierOutlook(
        nodes=nodes,
        epochs=epochs,
        is_epochs_assumed=ran <= 1,
        tier_bytes=tier_bytes,
        whole_bytes=whole,
        copies=found["copies"],
        first_share=first / data_bytes,
        kept_share=max(0.0, 1 - math.fsum(later) / len(later) / data_bytes),
        saved_seconds_share=max(0.0, found["saved_seconds_share"]),
        fits_page_cache=memory is not None and whole <= memory // 2,
    )


def _count(value: object) -> int | None:
    """Return a positive number as an integer that the engine takes, or None."""
    found = number(value)
    return int(found) if found is not None and 1 <= found < 1 << 62 else None


def _has_tiers(row: Row) -> bool:
    known = (epoch.get("levels") for epoch in dicts(row.shown.get("by_epoch")))
    return any(name not in _NOT_TIERS for levels in known if isinstance(levels, dict) for name in levels)
