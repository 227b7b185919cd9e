"""The object of a framework that asks for batches, where it gives a loader no other sign.

The frames of the callers are searched, and no framework is imported. A search takes microseconds,
so it is made only where an iteration begins.
"""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["calling", "overfits"]


def calling(module: str, name: str) -> Any:
    """Return the nearest object of a class one of whose methods is being called, if any.

    Parameters
    ----------
    module, name : str
        Module and name of the class.
    """
    wanted: Any = getattr(sys.modules.get(module), name, None)
    frame = sys._getframe(1) if isinstance(wanted, type) else None
    while frame is not None:
        caller = frame.f_locals.get("self")
        # By its type: some objects claim to be others (`__class__`).
        if issubclass(type(caller), wanted):
            return caller
        frame = frame.f_back
    return None


def overfits() -> bool:
    """Return whether a trainer of Lightning wants the same batches in each epoch."""
    return any(
        trainer is not None and trainer.overfit_batches > 0
        for trainer in (calling(module, "Trainer") for module in ("lightning.pytorch", "pytorch_lightning"))
    )
