"""The error of what the simulator has no model of."""

from __future__ import annotations

from forebay._core import OptionError

__all__ = ["NotModelledError"]


class NotModelledError(OptionError):
    """A job, or a row, that has no model: a comparison goes on without it."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        text = f"not modelled: {what}"
        super().__init__(text if hint is None else f"{text}\nhint: {hint}")
