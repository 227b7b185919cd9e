"""Temporary directories: gone at the end, or with the next one, and nothing else goes with them."""

from __future__ import annotations

import subprocess
import sys
import tempfile

import pytest

from forebay_lab.scratch import remove_leftovers, scratch

PREFIX = "forebay-test-"


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def left(place):
    return sorted(path.name for path in place.iterdir())


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt])
def test_a_directory_is_gone_at_the_end_with_all_that_is_in_it(place, error):
    try:
        with scratch(PREFIX) as directory:
            assert directory.parent == place
            (directory / "node0").mkdir()
            (directory / "deep" / "deeper").mkdir(parents=True)
            (directory / "deep" / "deeper" / "file").write_text("x")
            (directory / "link").symlink_to(place)
            remove_leftovers(PREFIX)
            assert (directory / "deep" / "deeper" / "file").exists(), "whoever made it lives"
            if error is not None:
                raise error
    except (ValueError, KeyboardInterrupt):
        pass
    assert left(place) == []


def test_what_a_killed_process_left_is_removed(place):
    code = (
        "import os, signal, sys, tempfile; tempfile.tempdir = sys.argv[1]\n"
        "from forebay_lab.scratch import scratch\n"
        f"with scratch({PREFIX!r}) as directory:\n"
        "    (directory / 'file').write_text('x'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(place)], check=False)
    assert done.returncode == -9
    assert len(left(place)) == 1
    remove_leftovers(PREFIX)
    assert left(place) == []


def test_nothing_else_is_taken_for_leftovers(place):
    # Like ours, but without our marker; open to others; behind a link.
    for name in ("own", "open", "other"):
        (place / f"{PREFIX}{name}").mkdir(mode=0o700)
        (place / f"{PREFIX}{name}" / "lock").write_text("")
        (place / f"{PREFIX}{name}" / "precious").write_text("x")
    (place / f"{PREFIX}open" / ".forebay-scratch").write_text("")
    (place / f"{PREFIX}open").chmod(0o755)
    (place / f"{PREFIX}other").rename(place / "other")
    (place / "other" / ".forebay-scratch").write_text("")
    (place / f"{PREFIX}link").symlink_to(place / "other")
    remove_leftovers(PREFIX)
    assert left(place) == [f"{PREFIX}link", f"{PREFIX}open", f"{PREFIX}own", "other"]
    assert all((place / name / "precious").exists() for name in left(place))
