"""Figures of papers, simulated, and the search for what is faster: a module each, with sections."""

from __future__ import annotations

from studies.harness.sections import Section, Study
from studies.simulate import async_io, deepio, fefs, lmdbio, monarch, search

PAPERS: dict[str, dict[str, Section]] = {
    "lmdbio": lmdbio.SECTIONS,
    "async-io": async_io.SECTIONS,
    "deepio": deepio.SECTIONS,
    "fefs": fefs.SECTIONS,
    "monarch": monarch.SECTIONS,
    "search": search.SECTIONS,
}

STUDY = Study(
    sections={name: section for sections in PAPERS.values() for name, section in sections.items()},
    groups={paper: tuple(sections) for paper, sections in PAPERS.items()},
    is_simulated=True,
)
