"""All test files of the crates are compiled: where one program has them all, it names each."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
JOINED = sorted(path.parent.parent for path in ROOT.glob("**/crates/*/tests/all.rs"))


@pytest.mark.parametrize("crate", JOINED, ids=lambda crate: crate.name)
def test_the_program_of_a_crate_has_all_its_test_files(crate):
    manifest = tomllib.loads((crate / "Cargo.toml").read_text())
    assert not manifest["package"]["autotests"]
    assert [test["name"] for test in manifest["test"]] == ["all"]
    named = re.findall(r"^mod (\w+)", (crate / "tests/all.rs").read_text(), re.MULTILINE)
    files = {path.stem for path in (crate / "tests").glob("*.rs")} - {"all"}
    assert files == {name for name in named if (crate / f"tests/{name}.rs").exists()}
