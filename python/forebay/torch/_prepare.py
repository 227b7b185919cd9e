"""The loader for Accelerate, whose class is made in :mod:`forebay.torch._prepared`."""

from __future__ import annotations

from typing import Any, Unpack

from forebay._adapters.loaders import Source
from forebay._adapters.require import require
from forebay._core import option_error
from forebay.torch._loader import TensorLoader, TensorOptions, tensor_loader

__all__ = ["prepare"]


def prepare(
    accelerator: Any,
    source: TensorLoader | Source,
    batch_size: int | None = None,
    **options: Unpack[TensorOptions],
) -> Any:
    """Make a loader that an ``accelerate.Accelerator`` knows, as ``accelerator.prepare`` would.

    Each process reads its own part; ``accelerator.prepare`` of a ``DataLoader`` would read on
    process 0 for all. The accelerator learns where the epoch ends, for the accumulation of
    gradients. ``save_state`` and ``load_state`` keep the position, and ``skip_first_batches``
    continues after that many batches of the epoch.

    Parameters
    ----------
    accelerator : accelerate.Accelerator
        The accelerator. Make it before the loader, whose ranks are its processes.
    source : TensorLoader, Loader, Dataset, path-like or sequence of path-like
        What delivers the batches, or of what :func:`forebay.torch.loader` makes that.
    batch_size : int, optional
        Samples per rank and step; not with a loader.
    **options
        Options of :func:`forebay.torch.loader`, by name; not with a loader. ``device`` is that of
        the accelerator.

    Returns
    -------
    accelerate.data_loader.DataLoaderShard
        ``prepared.dataset.loader`` is the :class:`TensorLoader`.

    Raises
    ------
    ImportError
        Without accelerate 1.0 or later.
    OptionError
        As :func:`forebay.torch.loader` raises it.
    """
    require("forebay.torch.prepare", "accelerate", "1.0", "accelerate>=1.0")
    from forebay.torch._prepared import PreparedLoader

    if not isinstance(source, TensorLoader) and accelerator.device.type != "cpu":
        options.setdefault("device", accelerator.device)
    loader = tensor_loader("forebay.torch.prepare", source, batch_size, options)
    # Processes that share a replica of the model need the same samples.
    sharing = getattr(getattr(accelerator, "parallelism_config", None), "non_data_parallel_size", 1)
    if sharing > 1 and loader.loader.world.size == accelerator.num_processes:
        if loader is not source:
            loader.close()
        raise option_error(
            f"forebay.torch.prepare: expected a rank of the loader for each {sharing} of the "
            f"{accelerator.num_processes} processes, which share a replica of the model; found one for each",
            "state the replicas: world=forebay.World(rank=replica, size=replicas, local_rank=, local_size=, job=)",
        )
    return accelerator.prepare(PreparedLoader(loader, accelerator.device))
