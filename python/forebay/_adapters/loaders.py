"""The loader behind an adapter: the user's own, or one made of a dataset and options."""

from __future__ import annotations

from collections.abc import Sequence

from forebay._core import option_error
from forebay.dataset import Dataset, PathLike
from forebay.loader import Loader, LoaderOptions

__all__ = ["Source", "loader_for"]

Source = Loader | Dataset | PathLike | Sequence[PathLike]


def loader_for(adapter: str, source: Source, batch_size: int | None, options: LoaderOptions) -> Loader:
    """Return the loader that an adapter iterates.

    Parameters
    ----------
    adapter : str
        Name of the function that the user called, for errors.
    source : Loader, Dataset, path-like or sequence of path-like
        A loader is returned as it is.
    batch_size : int, optional
        Samples per rank and step.
    options : dict
        Options of :class:`forebay.Loader`, by name.

    Raises
    ------
    OptionError
        If a loader and options are given, or as :class:`forebay.Loader` raises it.
    """
    if not isinstance(source, Loader):
        return Loader(source, batch_size, **options)
    given = ["batch_size"] * (batch_size is not None) + [
        name for name, value in options.items() if value is not None
    ]
    if given:
        raise option_error(
            f"{adapter}: expected no options of forebay.Loader beside a loader, found {given[0]}=",
            "give them to forebay.Loader, or give the dataset instead of the loader",
        )
    return source
