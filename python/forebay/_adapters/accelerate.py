"""Which object of Accelerate asks for the batches of a loader; Accelerate is not imported here.

It gives an iterable dataset to a ``DataLoaderDispatcher``, which reads on process 0 for all
processes. A loader with several ranks would wait there for the others for ever. No hook tells the
two that, so the callers are looked at.
"""

from __future__ import annotations

from typing import Any

from forebay._callers import calling
from forebay._core import option_error
from forebay.loader import Loader

__all__ = ["asking", "refuse_dispatch"]


def asking(kind: str) -> Any:
    """Return the object of a class of Accelerate that is among the callers, if any.

    Parameters
    ----------
    kind : str
        Name of the class in ``accelerate.data_loader``.
    """
    return calling("accelerate.data_loader", kind)


def refuse_dispatch(adapter: str, loader: Loader, hint: str) -> None:
    """Raise if Accelerate reads on process 0 what each rank of the loader has a part of.

    Parameters
    ----------
    adapter : str
        Name of the function that the user called, for errors.
    loader : Loader
        The loader.
    hint : str
        What lets each rank read its part.

    Raises
    ------
    OptionError
        If so.
    """
    if loader.world.size > 1 and asking("DataLoaderDispatcher") is not None:
        raise option_error(
            f"{adapter}: Accelerate reads on process 0 for all, and each of the {loader.world.size} ranks of loader "
            f"{loader.name!r} has a part of the samples",
            f'{hint}; or world="single", which lets process 0 read all samples',
        )
