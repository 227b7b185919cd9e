"""A row of a result: its repetitions, and what follows from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from forebay_lab.bench import timing

if TYPE_CHECKING:
    from forebay_lab.bench import verify
    from forebay_lab.bench.strategies import Row

__all__ = ["MeasuredRow"]


@dataclass(slots=True)
class MeasuredRow:
    """What is known about a row so far."""

    row: Row
    status: str = "ok"
    error: str | None = None
    verified: verify.Verified | None = None
    repetitions: list[dict[str, Any]] = field(default_factory=list)
    explain: str = ""
    shuffle_quality: dict[str, Any] | None = None
    tiers: dict[str, Any] | None = None
    minimum_bytes: int | None = None

    def fail(self, error: Exception) -> None:
        """Note that it failed."""
        self.status, self.error = "failed", str(error)

    def as_json(self) -> dict[str, Any]:
        """Return the object of a result (docs/metrics.md)."""
        medians = timing.median(self.repetitions) if self.repetitions else None
        return {
            "name": self.row.name,
            "strategy": self.row.strategy,
            "order": self.row.order,
            "status": self.status,
            "error": self.error,
            "repetitions": self.repetitions,
            "median": medians,
            "spread": None if medians is None else timing.spread(self.repetitions, medians),
            "minimum_bytes": self.minimum_bytes,
            "digest_steps": self.verified.digest_steps if self.verified else None,
            "digest_epoch": self.verified.digest_epoch if self.verified else None,
            "explain": self.explain,
            "shuffle_quality": self.shuffle_quality,
            "tiers": self.tiers,
            "label": self.row.label,
            "environment": self.row.surroundings.environment,
            "wrapper": list(self.row.surroundings.wrapper),
            "simulated": None,
        }
