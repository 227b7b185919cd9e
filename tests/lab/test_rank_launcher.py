"""The launcher of ranks: what is missing, what failed, progress, a deadline."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import support
from forebay_lab.demo.runner import main
from forebay_lab.ranks import launch


def test_a_missing_launcher_is_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says
):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with says(launch.LaunchError, "forebay[mpi]"):
        launch.command(4, ["-c", "pass"])


def test_the_demo_without_mpi_fails_before_it_makes_data(monkeypatch, capsys, place: Path):
    monkeypatch.setattr(launch.importlib.util, "find_spec", lambda name: None)
    assert main(data=place / "data", output=place / "demo.html") == 1
    assert "mpi4py is not installed" in capsys.readouterr().err
    assert list(place.iterdir()) == []


def test_a_failing_run_shows_the_end_of_its_output():
    with pytest.raises(launch.LaunchError, match=r"(?s)\b3\b.*the reason"):
        launch.run(
            [sys.executable, "-c", "print('the reason'); exit(3)"], deadline_s=60, progress=lambda done: None
        )


def test_progress_lines_are_told_and_not_shown():
    seen: list[int] = []
    program = f"print('{launch.PROGRESS_MARK} 20'); print('{launch.PROGRESS_MARK} x'); exit(1)"
    with pytest.raises(launch.LaunchError) as error:
        launch.run([sys.executable, "-c", program], deadline_s=60, progress=seen.append)
    assert seen == [20]
    assert "20" not in str(error.value)


def test_a_run_past_its_deadline_is_ended_with_all_its_processes(tmp_path: Path):
    child = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); time.sleep(600)"
    program = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {child!r}], process_group=0)\n"
        f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
        "time.sleep(600)"
    )
    told = tmp_path / "pid"
    deadline_s = 1.0
    # Two interpreters have to start before the deadline.
    while not (told.exists() and told.read_text()):
        deadline_s *= 2
        with pytest.raises(launch.LaunchError):
            launch.run([sys.executable, "-c", program], deadline_s=deadline_s, progress=lambda done: None)
    status = Path(f"/proc/{told.read_text()}/status")

    def has_ended() -> bool:
        try:
            return "\nState:\tZ" in status.read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    support.wait_until(has_ended, "the end of the grandchild")


def test_a_thread_that_is_refused_is_an_error_of_the_launch_and_leaves_no_process(monkeypatch):
    started = []

    def refuse(thread):
        raise RuntimeError("can't start new thread")

    class Popen(launch.subprocess.Popen):
        def __init__(self, *arguments, **more):
            super().__init__(*arguments, **more)
            started.append(self)

    monkeypatch.setattr(launch.threading.Thread, "start", refuse)
    monkeypatch.setattr(launch.subprocess, "Popen", Popen)
    with pytest.raises(launch.LaunchError) as error:
        launch.run([sys.executable, "-c", "import time; time.sleep(600)"], deadline_s=60, progress=print)
    assert isinstance(error.value.__cause__, RuntimeError)
    (process,) = started
    assert process.poll() is not None
