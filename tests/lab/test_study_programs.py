"""Programs that studies talk to: every line is read, and a failure says what the program said."""

from __future__ import annotations

import sys

import pytest

from studies.harness.program import Program, ProgramError

TWO_LINES = "import sys\nfor line in sys.stdin: print('[1]\\n[2]', flush=True)"
FAILS = "import sys; print('a reason', file=sys.stderr)"
SILENT = "import sys; sys.stdin.read()"


def test_lines_that_come_at_once_are_read_one_by_one():
    with Program([sys.executable, "-c", TWO_LINES]) as program:
        assert program.ask("go") == [1]
        assert program.line() == "[2]"
        assert program.ask("go") == [1]


def test_a_program_that_ended_says_why():
    with (
        Program([sys.executable, "-c", FAILS]) as program,
        pytest.raises(ProgramError, match="a reason"),
    ):
        program.line()


def test_a_silent_program_is_given_up():
    with (
        Program([sys.executable, "-c", SILENT], answer_s=0.2) as program,
        pytest.raises(ProgramError, match="no answer"),
    ):
        program.ask("go")


def test_a_program_is_closed_once_and_has_an_exit_code():
    program = Program([sys.executable, "-c", "import sys; sys.stdin.read(); sys.exit(3)"])
    assert [program.close(60), program.close()] == [3, 3]
