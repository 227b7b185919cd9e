"""What the loaders of frameworks answer as the loader behind them does."""

from __future__ import annotations

from typing import Any

from forebay.config import Config
from forebay.loader import Loader

__all__ = ["Forwards"]


class Forwards:
    """The facts of the loader behind a loader of a framework."""

    @property
    def loader(self) -> Loader[Any]:
        """The loader behind it."""
        raise NotImplementedError

    @property
    def config(self) -> Config:
        """What the loader decided and found, as :attr:`forebay.Loader.config`."""
        return self.loader.config

    def explain(self) -> str:
        """Return what the loader decided and why, as :meth:`forebay.Loader.explain`."""
        return self.loader.explain()

    def stats(self) -> dict[str, Any]:
        """Return what the loader measured, as :meth:`forebay.Loader.stats`."""
        return self.loader.stats()

    def bad_samples(self) -> list[tuple[int, str]]:
        """Return the bad samples of this rank, as :meth:`forebay.Loader.bad_samples`."""
        return self.loader.bad_samples()

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return self.loader._repr_html_()
