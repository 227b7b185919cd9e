"""docs/api.md is what scripts/api_reference.py writes, and has what users look up."""

from __future__ import annotations

import re
import shutil
import sys

import forebay
from support import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import api_reference

ADAPTER = '''"""Batches for a framework.

See :func:`loader`.
"""

from forebay._adapters.loaders import Source

__all__ = ["Batches", "loader"]

import a_framework_that_nobody_has


def loader(source: Source, batch_size: int = 8, **options) -> "Batches":
    """Return batches.

    Parameters
    ----------
    source : Loader or path-like
        A :class:`forebay.Loader`, or what it takes (docs/options.md).
    kind : {"a", "b"} or function
        What comes.
    """


class _Base:
    def set_epoch(self, epoch: int) -> None:
        """Set the epoch."""


class Batches(_Base, a_framework_that_nobody_has.Base):
    """Iterate batches."""

    def state_dict(self) -> dict[str, int]:
        """Return the state."""

    def _hidden(self) -> None:
        """Help."""
'''


def test_the_page_is_up_to_date():
    expected = api_reference.reference()
    assert api_reference.PAGE.read_text() == expected, "run python scripts/api_reference.py"


def test_the_page_has_each_public_name_and_its_methods():
    headings = re.findall(r"^#+ `(.*)`$", api_reference.PAGE.read_text(), flags=re.MULTILINE)
    assert {f"forebay.{name}" for name in forebay.__all__} - {"forebay.__version__"} <= set(headings)
    members = vars(forebay.Loader).items()
    public = {f"forebay.Loader.{name}" for name, value in members if callable(value) and name[0] != "_"}
    assert public
    assert public <= set(headings)
    assert len(headings) == len(set(headings))


def test_links_on_the_page_lead_to_its_headings():
    text = api_reference.PAGE.read_text()
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    anchors = {api_reference.anchor(heading) for heading in headings}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert links
    assert links <= anchors


def test_an_adapter_is_described_without_its_framework(tmp_path):
    shutil.copytree(ROOT / "python/forebay", tmp_path / "forebay", ignore=shutil.ignore_patterns("*.so"))
    (tmp_path / "forebay/framework.py").write_text(ADAPTER)
    text = api_reference.reference(tmp_path)
    section = text.partition("## forebay.framework\n")[2]
    assert "See [`loader`](#forebayframeworkloader).\n" in section
    assert "- `source` (Loader or path-like): A [`Loader`](#forebayloader), or what it takes" in section
    assert '- `kind` ({"a", "b"} or function): What comes.' in section
    assert "#### `forebay.framework.Batches.state_dict`" in section
    assert "forebay.framework.Batches.set_epoch(epoch: int) -> None" in section
    assert "_hidden" not in section
    # The rest of the page does not change but for the index.
    before = api_reference.PAGE.read_text()
    assert before.partition("\n## ")[2].partition("\n## forebay.")[0].rstrip() in text


def test_a_public_name_without_a_section_comes_last():
    found = api_reference.sections([*forebay.__all__, "Novelty"])
    assert list(found)[-1] == "Others"
    assert found["Others"] == ["Novelty"]
    assert "Others" not in api_reference.sections(forebay.__all__)
