"""Move training samples from shared storage into the memory of every rank.

    import forebay

    loader = forebay.Loader(forebay.open("train.lmdb"), batch_size=256, order="group")
    for batch in loader:
        ...

Names are loaded at first use, so that the command line does not pay for numpy where it does not
need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay._formats.manifest import ManifestDataset, manifest
    from forebay._formats.tokens import TokenDataset, tokens
    from forebay._given_order import Given, Weighted
    from forebay._iteration import Batch, BatchTuple, Position
    from forebay._job.world import World
    from forebay._mixture import Mixture, mix
    from forebay._options.parameters import Group, LocalShuffle, Opportunistic, Store, Strategy, Tier
    from forebay._samples.collate import Padded, Ragged
    from forebay.config import Config
    from forebay.dataset import Dataset, open
    from forebay.decode import Decoder, array, image
    from forebay.errors import (
        ForebayError,
        FormatError,
        MemoryLimitError,
        OptionError,
        PeerLostError,
        RendezvousError,
        StorageError,
        StorageTimeout,
    )
    from forebay.loader import Loader

    __version__: str

__all__ = [
    "Batch",
    "BatchTuple",
    "Config",
    "Dataset",
    "Decoder",
    "ForebayError",
    "FormatError",
    "Given",
    "Group",
    "Loader",
    "LocalShuffle",
    "ManifestDataset",
    "MemoryLimitError",
    "Mixture",
    "Opportunistic",
    "OptionError",
    "Padded",
    "PeerLostError",
    "Position",
    "Ragged",
    "RendezvousError",
    "StorageError",
    "StorageTimeout",
    "Store",
    "Strategy",
    "Tier",
    "TokenDataset",
    "Weighted",
    "World",
    "__version__",
    "array",
    "image",
    "manifest",
    "mix",
    "open",
    "tokens",
]

_HOMES = {
    "Batch": "_iteration",
    "BatchTuple": "_iteration",
    "Config": "config",
    "Dataset": "dataset",
    "Decoder": "decode",
    "ForebayError": "errors",
    "FormatError": "errors",
    "Given": "_given_order",
    "Group": "_options.parameters",
    "Loader": "loader",
    "LocalShuffle": "_options.parameters",
    "Opportunistic": "_options.parameters",
    "MemoryLimitError": "errors",
    "ManifestDataset": "_formats.manifest",
    "Mixture": "_mixture",
    "OptionError": "errors",
    "Padded": "_samples.collate",
    "PeerLostError": "errors",
    "Position": "_iteration",
    "Ragged": "_samples.collate",
    "RendezvousError": "errors",
    "StorageError": "errors",
    "StorageTimeout": "errors",
    "Store": "_options.parameters",
    "Strategy": "_options.parameters",
    "Tier": "_options.parameters",
    "TokenDataset": "_formats.tokens",
    "Weighted": "_given_order",
    "World": "_job.world",
    "__version__": "_core",
    "array": "decode",
    "image": "decode",
    "manifest": "_formats.manifest",
    "mix": "_mixture",
    "open": "dataset",
    "tokens": "_formats.tokens",
}

# Modules that import a framework; `import forebay` imports none.
_ADAPTERS = frozenset({"grain", "jax", "tensorflow", "torch"})


def __getattr__(name: str) -> Any:
    import importlib

    if name in _ADAPTERS:
        return importlib.import_module(f"forebay.{name}")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"forebay.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
