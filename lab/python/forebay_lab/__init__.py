"""What measures, reproduces and predicts loaders: bench, demo, emulator, report, and papers.

``forebay_lab.strategy("lmm")`` is a strategy of a paper for ``forebay.Loader(strategy=)``. The
commands ``forebay bench``, ``demo``, ``pfs``, ``recipe`` and ``report`` are here.
"""

from forebay_lab.strategies import PRESETS, Strategy, strategy

__all__ = ["PRESETS", "Strategy", "strategy"]
