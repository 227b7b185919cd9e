"""What the sections share: where data is, and runs of programs in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sections import DIRECTORY

__all__ = ["DIRECTORY", "Study"]


@dataclass(frozen=True)
class Study:
    """What the command line asked for."""

    tiny: bool
    directory: Path = DIRECTORY

    @property
    def repetitions(self) -> int:
        """Runs of each row, of which the median counts."""
        return 1 if self.tiny else 3

    def pick(self, whole: Any, tiny: Any) -> Any:
        """Take the one or the other."""
        return tiny if self.tiny else whole

    def in_turn(self, measures: Mapping[str, Callable[[], float]]) -> dict[str, float]:
        """Run each once to warm up, then all in turn; return the median seconds of each."""
        found: dict[str, list[float]] = {name: [] for name in measures}
        for number in range(self.repetitions + 1):
            for name, measure in measures.items():
                seconds = measure()
                if number:
                    found[name].append(seconds)
        return {name: statistics.median(seconds) for name, seconds in found.items()}
