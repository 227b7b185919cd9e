"""LMDBIO (docs/papers.md) on Bebop and Blues: a section for each group of its figures."""

from __future__ import annotations

from studies.harness.sections import Section
from studies.simulate.lmdbio.blocks import blocks
from studies.simulate.lmdbio.ladder import ladder
from studies.simulate.lmdbio.scaling import scaling
from studies.simulate.lmdbio.training import blues, strong, weak
from studies.simulate.lmdbio.waits import nodes, order, redundant

__all__ = ["SECTIONS"]

SECTIONS: dict[str, Section] = {
    "lmdbio-scaling": scaling,
    "lmdbio-redundant": redundant,
    "lmdbio-blocks": blocks,
    "lmdbio-order": order,
    "lmdbio-ladder": ladder,
    "lmdbio-nodes": nodes,
    "lmdbio-blues": blues,
    "lmdbio-strong": strong,
    "lmdbio-weak": weak,
}
