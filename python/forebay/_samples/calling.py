"""How a function of a sample is called: whether it takes random numbers, and by which argument."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from forebay._core import option_error

if TYPE_CHECKING:
    from forebay._samples.rng import Randomness

__all__ = ["SampleFunction", "call", "check_function", "parameters", "sample_at"]

SampleFunction = Callable[..., Any]

_KINDS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def check_function(name: str, function: object, takes: str) -> None:
    """Raise an OptionError unless ``function`` can be called."""
    if not callable(function):
        raise option_error(f"{name}=: expected a function of {takes}, found {function!r}")


def parameters(function: SampleFunction) -> str:
    """Return how ``transform=`` is called: ``"sample"``, ``"sample, rng"`` or ``"sample, rng="``.

    A function gets a generator if it has a parameter ``rng``, or two parameters without a default.
    A function that does not say which parameters it has gets none.

    Raises
    ------
    OptionError
        If it cannot be called in one of these ways.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return "sample"
    positional = [one for one in signature.parameters.values() if one.kind in _KINDS]
    required = [one for one in positional if one.default is one.empty]
    named = signature.parameters.get("rng")
    if named is not None and named.kind not in (*_KINDS, named.KEYWORD_ONLY):
        named = None
    arguments: tuple[int, ...] = (0,)
    keywords: dict[str, int] = {}
    if named is not None and (named.kind is named.KEYWORD_ONLY or positional.index(named) > 1):
        way, keywords = "sample, rng=", {"rng": 0}
    elif len(required) >= 2 or (named is not None and len(positional) > 1 and positional[1] is named):
        way, arguments = "sample, rng", (0, 0)
    else:
        way = "sample"
    try:
        signature.bind(*arguments, **keywords)
    except TypeError as error:
        raise option_error(
            f"transform=: expected a function of a sample, or of sample and rng; found {_shown(function)}{signature}: {error}",
            "functools.partial or a lambda gives it its other arguments",
        ) from None
    return way


def _shown(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)


def sample_at(fields: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return a sample of a batch: views of its arrays."""
    # An ellipsis makes a view of a scalar, too; a field of varying length is a list.
    return {
        name: values[at] if isinstance(values, list) else values[at, ...] for name, values in fields.items()
    }


def call(
    function: SampleFunction, way: str, sample: dict[str, Any], number: int, randomness: Randomness
) -> Any:
    """Call a function for a sample in the way that :func:`parameters` found."""
    if way == "sample":
        return function(sample)
    rng = randomness.of(number)
    return function(sample, rng) if way == "sample, rng" else function(sample, rng=rng)
