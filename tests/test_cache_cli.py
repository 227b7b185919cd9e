"""``forebay cache``: what the tiers hold, with a daemon and without."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import forebay
import tier_support
from forebay.cli.commands import cli
from tier_support import DATA_BYTES, PIECES, daemon, tier_data  # noqa: F401


def run(*arguments, status=0):
    result = CliRunner().invoke(cli, ["cache", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


@pytest.fixture
def filled(tier_data, daemon, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FOREBAY_TIERS_IDLE", "60")
    path = tmp_path / "tier"
    data = tier_data.formats["raw"]
    dataset = forebay.open(data, **tier_support.opening("raw"))
    strategy = forebay.Strategy(access="pread")
    loader = forebay.Loader(dataset, 16, memory="128MiB", strategy=strategy, tiers=[tier_support.tier(path)])
    for _ in loader:
        pass
    loader.close()
    return path, data, daemon


def test_the_copies_of_a_tier_are_listed_verified_and_cleared(filled):
    path, data, daemon = filled  # noqa: F811
    (level,) = json.loads(run("ls", "--json"))["levels"]
    assert (level["name"], level["state"], level["quota_bytes"]) == (str(path), "open", 64 << 20)
    (source,) = level["sources"]
    assert (source["path"], source["bytes"], source["pieces"]) == (str(data), DATA_BYTES, PIECES)
    text = run("ls")
    assert all(one in text for one in (str(data), "100%"))
    daemon.end()
    # Without a daemon the log is read.
    (stored,) = json.loads(run("ls", path, "--json"))["levels"]
    assert (stored["state"], stored["sources"][0]["pieces"]) == ("stored", PIECES)
    checked = json.loads(run("verify", path, "--json"))["tiers"][str(path)]
    assert checked == {"pieces": PIECES, "bytes": DATA_BYTES, "damaged": []}
    slab = min((path / "forebay-0/v1/slabs").iterdir())
    contents = bytearray(slab.read_bytes())
    contents[70_000] ^= 1
    slab.write_bytes(contents)
    text = run("verify", path, status=1)
    assert all(one in text for one in (str(slab), "65536", str(data)))
    freed = json.loads(run("clear", path, "--json"))["freed_bytes"]
    assert freed >= DATA_BYTES
    assert json.loads(run("ls", path, "--json"))["levels"][0]["sources"] == []


def test_nothing_is_made_where_there_is_no_tier(daemon, tmp_path):  # noqa: F811
    tmp_path = tmp_path / "tier"
    tmp_path.mkdir()
    assert json.loads(run("ls", tmp_path, "--json")) == {"levels": [], "daemon": None}
    assert json.loads(run("verify", tmp_path, "--json")) == {"tiers": {}}
    assert json.loads(run("clear", tmp_path, "--json")) == {"freed_bytes": 0}
    assert "no tier daemon" in run("stop")
    assert list(tmp_path.iterdir()) == []
