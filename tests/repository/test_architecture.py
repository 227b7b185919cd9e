"""The architecture: allowed imports of crates, folders and files, test counts, make targets."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys

import pytest

from forebay import options
from forebay._options import forms
from forebay.cli import commands
from forebay_lab import PRESETS
from forebay_lab import cli as lab_cli
from support import ROOT, run_python, selection
from support.import_circles import Crate, Package


def load(name):
    """Import a script that is no module of a package."""
    specification = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module


def allowed_dependencies():
    """Read the table of docs/architecture.md."""
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| (forebay-[a-z-]+) \| ([^|]*) \|$", page, flags=re.MULTILINE)
    return {crate: set(filter(None, re.split(r",\s*", names.strip()))) for crate, names in rows}


def test_a_crate_depends_on_nothing_that_the_design_does_not_allow():
    command = ["cargo", "metadata", "--no-deps", "--offline", "--format-version", "1"]
    found = json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout)
    allowed = allowed_dependencies()
    assert {package["name"] for package in found["packages"]} == allowed.keys()
    for package in found["packages"]:
        # Kind None is an ordinary dependency; those of tests and of fuzzing are free.
        needed = {one["name"] for one in package["dependencies"] if one["kind"] != "dev"}
        extra = needed - allowed[package["name"]]
        assert not extra, f"{package['name']} depends on {extra}; docs/architecture.md does not allow that"


def test_dependencies_between_crates_run_one_way():
    allowed = allowed_dependencies()
    order = [
        ["forebay-types", "forebay-host", "forebay-image", "forebay-table", "forebay-model"],
        ["forebay-io", "forebay-plan", "forebay-transport", "forebay-preload"],
        ["forebay-format", "forebay-tier"],
        ["forebay-engine", "forebay-lmdbio", "forebay-recipe", "forebay-pfs"],
        ["forebay-py", "forebay-sim"],
        ["forebay-native", "forebay-lab-native"],
    ]
    assert {crate for level in order for crate in level} == allowed.keys()
    for number, level in enumerate(order):
        above = {crate for later in order[number:] for crate in later}
        for crate in level:
            assert not allowed[crate] & above, crate
    # The loader knows nothing of lab, and lab's crates are joined by its native module alone, but
    # for what emulator and simulator run on: the model, recipes of files, strategies of papers.
    lab = {"forebay-lmdbio", "forebay-recipe", "forebay-model", "forebay-pfs", "forebay-sim"}
    of_simulator = {"forebay-model", "forebay-recipe", "forebay-lmdbio"}
    on_model = {"forebay-pfs": {"forebay-model"}, "forebay-sim": of_simulator}
    assert {crate for crate in allowed if allowed[crate] & lab} == {*on_model, "forebay-lab-native"}
    assert {crate: allowed[crate] & lab for crate in on_model} == on_model
    # The simulator decides as the engine does, without it.
    assert not allowed["forebay-sim"] & {"forebay-engine", "forebay-tier", "forebay-host", "forebay-io"}
    assert "forebay-plan" not in allowed["forebay-format"]
    # What runs inside of other programs takes nothing along.
    assert not allowed["forebay-table"] & allowed.keys()
    assert allowed["forebay-preload"] == {"forebay-table", "libc"}
    # What is shared by processes knows nothing of samples.
    assert not [crate for crate in allowed["forebay-host"] if crate.startswith("forebay-")]


def test_the_loader_has_nothing_of_lab():
    """Neither its package, nor its native module, nor what importing it loads."""
    sources = (ROOT / "python/forebay").rglob("*.py")
    assert not [
        path
        for path in sources
        if re.search(r"^\s*(from|import) forebay_lab", path.read_text(), re.MULTILINE)
    ]
    native = (ROOT / "python/forebay/_native.abi3.so").read_bytes()
    # Names of source files, which stay where a panic may be told.
    assert b"forebay-engine/src" in native
    lab = ("model", "pfs", "sim", "lmdbio", "recipe")
    assert not [name for name in lab if f"forebay-{name}/src".encode() in native]
    assert b"fuser-" not in native
    code = "import forebay, sys; forebay.Loader; forebay.open; print([name for name in sys.modules if 'lab' in name])"
    assert run_python(code).stdout == "[]\n"


CRATES = sorted((*ROOT.glob("crates/*"), *ROOT.glob("lab/crates/*"), *ROOT.glob("run/*")))


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_files_of_a_crate_import_each_other_in_one_direction(crate):
    assert Crate(crate / "src").circles() == []


def test_the_hints_of_the_loader_name_what_lab_has():
    assert tuple(sorted(lab_cli.COMMANDS)) == commands._OF_LAB
    assert set(forms._OF_LAB) == PRESETS.keys() - options.PRESETS.keys()


@pytest.mark.parametrize("package", ["python/forebay", "lab/python/forebay_lab"])
def test_modules_of_a_python_package_import_each_other_in_one_direction(package):
    assert Package(ROOT / package).circles() == []


@pytest.mark.parametrize("crate", CRATES, ids=lambda crate: crate.name)
def test_folders_of_a_crate_import_each_other_in_one_direction(crate):
    assert Crate(crate / "src").circles_of_folders() == []


@pytest.mark.parametrize("name", ["io", "plan", "tier", "transport", "engine"])
def test_the_parts_of_a_crate_import_only_from_those_above_them(name):
    """The header of its lib.rs lists files and folders in the order of their imports."""
    source = ROOT / f"crates/forebay-{name}/src"
    rows = re.findall(r"^//! - (.*?`\]?):", (source / "lib.rs").read_text(), flags=re.MULTILINE)
    order = [part for row in rows for part in re.findall(r"`(\w+)`", row)]
    arrows = Crate(source).arrows_within(())
    assert sorted(order) == sorted(part for (part,) in arrows)
    wrong = {
        (user, used)
        for (user,), others in arrows.items()
        for (used,) in others
        if order.index(used) > order.index(user)
    }
    assert not wrong


def test_a_circle_of_folders_is_found(tmp_path):
    files = {
        "lib.rs": "mod a;\nmod b;\n",
        "a/mod.rs": "mod one;\nmod two;\n",
        "a/one.rs": "use crate::b::three::Three;\n",
        "a/two.rs": "pub struct Two;\n",
        "b/mod.rs": "mod three;\nmod four;\n",
        "b/three.rs": "pub struct Three;\n",
        "b/four.rs": "use crate::a::two::Two;\n",
    }
    crate = crate_of(tmp_path, files)
    assert crate.circles() == []
    assert crate.circles_of_folders() == [["a", "b"]]


def test_a_circle_of_modules_is_found_also_inside_functions_and_type_checks(tmp_path):
    files = {
        "__init__.py": "from package import a\n",
        "a.py": "def f():\n    from package import b\n",
        "b.py": "if TYPE_CHECKING:\n    from package.c import C\n",
        "c.py": "import package.a\n",
        "d.py": "from package import a, VERSION\n",
    }
    (tmp_path / "package").mkdir()
    for name, text in files.items():
        (tmp_path / "package" / name).write_text(text)
    assert Package(tmp_path / "package").circles() == [["package.a", "package.b", "package.c"]]


def crate_of(tmp_path, files):
    """Write the files of a crate and return it."""
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return Crate(tmp_path)


def test_a_circle_is_found_behind_a_reexport(tmp_path):
    files = {
        "lib.rs": "mod error;\nmod index;\npub use error::Error;\npub use index::Index;\n",
        "error.rs": "use crate::Index;\npub struct Error(Index);\n",
        "index/mod.rs": "mod cache;\npub struct Index(cache::Cache);\n",
        "index/cache.rs": "pub struct Cache;\nfn fail() -> crate::Error { todo!() }\n",
    }
    crate = crate_of(tmp_path, files)
    assert crate.imports(("error",)) == {("index",)}
    assert crate.imports(("index", "cache")) == {("error",)}
    # A mod.rs dispatches to its children, so index and index::cache are no circle; nor are index
    # and error.
    assert crate.circles() == []
    crate = crate_of(tmp_path, files | {"index/mod.rs": files["index/mod.rs"] + "use crate::{Error};\n"})
    assert crate.circles() == [["error", "index"]]


def test_comments_strings_tests_and_other_crates_are_no_imports(tmp_path):
    text = """
        //! See [`crate::b::B`].
        use std::{fmt, io::{self, Read}};
        use super::b::{self, B as Other};
        const NAME: &str = "crate::c::C";
        fn make() -> b::Part { Other }
        #[cfg(test)]
        mod tests {
            use super::c::C;
        }
    """
    text = "\n".join(line.removeprefix("        ") for line in text.splitlines())
    crate = crate_of(tmp_path, {"a.rs": text, "b.rs": "use super::a::NAME;", "c.rs": ""})
    assert crate.imports(("a",)) == {("b",)}
    assert crate.circles() == [["a", "b"]]


CARGO = """
running 3 tests
test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
test tests::result ... ok
     Running tests/other.rs
test result: FAILED. 4 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
"""


def test_results_of_all_suites_are_summed_in_one_line(tmp_path):
    run_tests = load("run_tests")
    rust = run_tests.count_rust(CARGO.splitlines(keepends=True))
    assert (rust.passed, rust.failed, rust.skipped) == (7, 2, 1)
    report = tmp_path / "junit.xml"
    report.write_text('<testsuites><testsuite tests="10" failures="1" errors="1" skipped="2"/></testsuites>')
    python = run_tests.count_junit(report)
    assert (rust + python).closing_line() == "13 passed, 4 failed, 3 skipped"
    assert run_tests.Counts(5).closing_line() == "5 passed, 0 failed"


def test_what_a_short_run_leaves_out_is_found_in_its_output():
    run_tests = load("run_tests")
    printed = ["2 passed, 3 deselected in 0.10s\n", selection.left_out(3) + "\n"]
    assert run_tests.left_out(printed) == ["3 tests run only by make test-all"]


def test_coverage_counts_lines_of_our_sources_only(tmp_path):
    coverage = load("measure_coverage")
    names = {
        tmp_path / "crates/forebay-io/src/lib.rs": 10,
        tmp_path / "lab/crates/forebay-pfs/src/deep/server.rs": 20,
        tmp_path / "run/forebay-preload/src/lib.rs": 40,
        tmp_path / "crates/forebay-io/tests/all.rs": 100,
        tmp_path / "target/crates/x/src/lib.rs": 200,
        tmp_path.parent / "registry/src/crates/y/src/lib.rs": 400,
    }
    files = [
        {"filename": str(path), "summary": {"lines": {"count": count, "covered": count // 2}}}
        for path, count in names.items()
    ]
    assert coverage.sum_of_ours({"data": [{"files": files}]}, tmp_path) == coverage.Lines(70, 35)
    assert str(coverage.Lines(3000, 2000)) == "66.67 % (2,000 of 3,000)"


def test_a_suite_that_ends_badly_without_a_failed_test_counts_as_one_failure(tmp_path):
    run_tests = load("run_tests")
    assert run_tests.count_rust(["error[E0308]: mismatched types\n"]).ended(101).failed == 1
    assert run_tests.count_junit(tmp_path / "absent.xml").ended(2).failed == 1
    assert run_tests.Counts(1, 2).ended(1).failed == 2
    assert run_tests.Counts(1).ended(0).failed == 0


def test_frameworks_that_cannot_be_had_are_said_not_to_have_run_where_that_is_allowed():
    run_tests, frameworks = load("run_tests"), load("frameworks")
    assert run_tests.UNAVAILABLE == frameworks.UNAVAILABLE

    def ended(status):
        code = f"raise SystemExit({status})"
        return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)

    counts, note = run_tests.frameworks(ended(frameworks.UNAVAILABLE), optional=True)
    assert (counts, "did not run" in note) == (run_tests.Counts(), True)
    assert run_tests.frameworks(ended(frameworks.UNAVAILABLE), optional=False) == (
        run_tests.Counts(failed=1),
        "",
    )
    # An environment that could be made, but was not, is a failure in any case.
    assert run_tests.frameworks(ended(1), optional=True) == (run_tests.Counts(failed=1), "")


@pytest.mark.parametrize(
    "target",
    [
        "build",
        "demo",
        "test",
        "test-all",
        "test-long",
        "coverage",
        "test-frameworks",
        "lint",
        "bench",
        "help",
    ],
)
def test_the_makefile_has_its_targets(target):
    makefile = (ROOT / "Makefile").read_text()
    assert re.search(rf"^{target}:.*## \S", makefile, flags=re.MULTILINE)


def test_comments_in_rust_are_wrapped_at_100_columns():
    """Lines of tables and words that cannot be broken may be longer."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for crate in CRATES
        for path in crate.rglob("*.rs")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100 and re.match(r"\s*//[/!]? (?!\|)\S+ ", line)
    ]
    assert not long, long
