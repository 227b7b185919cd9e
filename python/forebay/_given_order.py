"""Orders that the user gives: ids by a function of the epoch, or drawn by weights.

A weighted order draws the ids of an epoch with replacement: id *i* with the probability
``weights[i] / sum(weights)``, each draw independent of the others. The draws are those of
``Philox(key=seed + 2**64 * epoch, counter=3 * 2**128)``: 53 bits of each word, as a fraction of the
sum of the weights. Functions of samples and image decoders have the same key and other counters, so
their numbers are others (:mod:`forebay._samples.rng`, docs/decode.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from forebay import _native
from forebay._core import option_error

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = ["Given", "GivenStates", "Weighted"]

_COUNTER = 3 << 128


def _check_samples(order: str, samples: object) -> None:
    if samples is not None:
        _native.check_option(f"forebay.{order}: samples=", "order.samples", samples)


@dataclass(frozen=True, slots=True)
class Given:
    """The order that a function gives, of a stated number of samples per epoch.

    A plain function as ``order`` returns each sample of the dataset once. With this class it may
    return fewer ids, or some ids more than once, for example a curriculum.

    Parameters
    ----------
    function : callable
        Takes the epoch and returns sample ids: a one-dimensional array of integers, the same on
        every rank.
    samples : int, optional
        Ids that the function returns for each epoch. Default: as many as the dataset has samples.
    repeats : bool
        Whether ids may stand there more than once. Default False: a repeated id raises.

    Raises
    ------
    OptionError
        If ``function`` is none, or ``samples`` is not an integer of at least 1.
    """

    function: Callable[[int], npt.ArrayLike]
    samples: int | None = None
    repeats: bool = False

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise option_error(f"forebay.Given: expected a function of the epoch, found {self.function!r}")
        _check_samples("Given", self.samples)
        if not isinstance(self.repeats, bool):
            raise option_error(f"forebay.Given: repeats=: expected True or False, found {self.repeats!r}")


class GivenStates:
    """The states of a loader with an order that the script gives: they name its weights.

    Of a function nothing can be compared.
    """

    __slots__ = ("_states", "_weights")

    def __init__(self, states: _native.OrderState, weights: Weighted | None) -> None:
        self._states = states
        self._weights = {} if weights is None else {"weights": weights.digest}

    def at(self, epoch: int, step: int) -> dict[str, Any]:
        """Return the state after a number of steps of an epoch."""
        return {**self._states.at(epoch, step), **self._weights}

    def behind(self, position: tuple[int, int]) -> dict[str, Any]:
        """Return the state after the batch at a position."""
        return {**self._states.behind(position), **self._weights}

    def resume(self, state: Mapping[str, Any]) -> tuple[int, int, dict[str, Any] | None]:
        """Return where a state continues, and what the loader has to take over."""
        found = self._states.resume(state)
        here, there = self._weights.get("weights"), state.get("weights")
        if here != there:
            raise option_error(
                f"load_state_dict: the digest of the weights is {there!r} in the state and {here!r} in this loader",
                "make the loader with the forebay.Weighted of the state; None is an order without weights",
            )
        return found


class Weighted:
    """The order that draws samples by weights, with replacement, anew in each epoch.

    An epoch has some samples more than once and others not at all. It depends on the seed and the
    epoch alone, so it is the same on any number of ranks and after a resume.

    Parameters
    ----------
    weights : array_like of float, shape (samples of the dataset,)
        A weight for each sample, at least 0; they need not add up to 1.
    samples : int, optional
        Draws per epoch. Default: as many as there are weights.

    Raises
    ------
    OptionError
        If a weight is negative or not finite, if all are 0, or if ``samples`` is not an integer of
        at least 1.
    """

    __slots__ = ("_ends", "draws", "samples")

    def __init__(self, weights: npt.ArrayLike, *, samples: int | None = None) -> None:
        import numpy as np  # here, as the command line imports the options without it

        found = np.asarray(weights)
        if found.ndim != 1 or found.dtype.kind not in "fiub" or len(found) == 0:
            raise option_error(
                f"forebay.Weighted: expected one weight for each sample, found an array of {found.dtype}, "
                f"shape {found.shape}"
            )
        values = found.astype(np.float64)
        wrong = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
        if len(wrong):
            raise option_error(
                f"forebay.Weighted: expected weights of at least 0, found {values[wrong[0]]} for sample {wrong[0]}"
            )
        self._ends = np.cumsum(values)
        if not 0 < self._ends[-1] < np.inf:
            raise option_error(
                f"forebay.Weighted: expected weights with a finite sum above 0, found {self._ends[-1]}"
            )
        _check_samples("Weighted", samples)
        self.samples: int = len(values)
        """Samples of the dataset."""
        self.draws: int = self.samples if samples is None else samples
        """Ids of an epoch."""

    def __repr__(self) -> str:
        return f"forebay.Weighted({self.samples} weights, samples={self.draws})"

    @property
    def digest(self) -> str:
        """Digest of the weights, which are to be the same on all ranks."""
        import hashlib

        return hashlib.sha256(self._ends.tobytes()).hexdigest()[:16]

    def ids(self, seed: int, epoch: int) -> npt.NDArray[np.int64]:
        """Return the ids of an epoch; shape (draws,)."""
        import numpy as np

        words = np.random.Philox(key=seed + (epoch << 64), counter=_COUNTER).random_raw(self.draws)
        targets = (words >> np.uint64(11)) * 2.0**-53 * self._ends[-1]
        # Rounding may lift a target to the sum: then it is in the last sample with a weight.
        last = np.searchsorted(self._ends, self._ends[-1], side="left")
        found = np.searchsorted(self._ends, targets, side="right")
        chosen: npt.NDArray[np.int64] = np.minimum(found, last).astype(np.int64)
        return chosen
