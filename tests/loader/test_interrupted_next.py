"""A `next` that a signal handler or a warning interrupts loses no batch: the next delivers it."""

from __future__ import annotations

import gc
import itertools
import linecache
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import forebay
import support
from support.ranks.functions import label

PACKAGE = Path(forebay.__file__).parent
FILES = {str(PACKAGE / "loader.py"), str(PACKAGE / "_iteration.py"), *map(str, PACKAGE.glob("_samples/*.py"))}


class Interrupt(BaseException):
    """What a signal handler raises."""


class Interrupter:
    """Raises in this thread before the n-th line of the iterators that a call runs."""

    def __init__(self, lines):
        self.lines = lines
        self.has_raised = False

    def __enter__(self):
        self.left, self.lasts = self.lines, {}
        self.before = sys.gettrace()
        # What a finalizer raises is lost.
        gc.disable()
        sys.settrace(self.call)

    def __exit__(self, *exception):
        sys.settrace(self.before)
        gc.enable()

    def call(self, frame, event, argument):
        return self.line if frame.f_code.co_filename in FILES else None

    def line(self, frame, event, argument):
        # The end of a `with` is no place for a signal. A batch that the user's function has got
        # counts as delivered.
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip()
        is_end = line.startswith("with ") and self.lasts.get(frame, 0) > frame.f_lineno
        self.lasts[frame] = frame.f_lineno
        is_end = is_end or line.startswith("return self._batch_function(")
        if event == "line" and not is_end and frame.f_code.co_name != "__del__":
            self.left -= 1
            if self.left == 0:
                self.has_raised = True
                raise Interrupt
        return self.line


def interrupted_epochs(loader, lines):
    """Iterate two epochs; each batch is asked for twice, at first with an interrupt."""
    found, has_raised = [], False
    for _ in range(2):
        iteration = iter(loader)
        while True:
            before = len(found)
            interrupter = Interrupter(lines)
            try:
                with interrupter:
                    # Without an instruction of Python between the return and the list.
                    found.extend(itertools.islice(iteration, 1))
            except Interrupt:
                assert len(found) == before
                has_raised = True
                # What an interrupt leaves is a state that can be saved.
                steps = len(loader)
                assert loader.state_dict()["step"] == before % steps or before % steps == 0
                found.extend(itertools.islice(iteration, 1))
            if len(found) == before:
                break
    return found, has_raised


FUNCTIONS = [
    {},
    {"batch_transform": lambda batch: batch},
    {"transform": lambda sample: {"data": sample["data"]}, "workers": 2, "prefetch": 0},
    pytest.param(
        {"transform": lambda sample: {"data": sample["data"]}, "workers": 2, "prefetch": 3},
        marks=pytest.mark.full,
    ),
]


@pytest.mark.full
@pytest.mark.parametrize("functions", FUNCTIONS)
def test_an_interrupt_at_any_line_loses_no_batch(make, functions):
    def facts(batch):
        return batch.position, batch.indices.tolist(), batch["data"].tobytes()

    expected = [
        facts(batch) for one in [make(order="shuffle", batch_size=40)] for _ in range(2) for batch in one
    ]
    for lines in itertools.count(1):
        with make(order="shuffle", batch_size=40, name=f"at-{lines}", **functions) as loader:
            found, has_raised = interrupted_epochs(loader, lines)
            assert [facts(batch) for batch in found] == expected, f"interrupted at line {lines}"
            if "sample" in functions:
                # In the call of the user's function a batch counts as delivered.
                assert loader.stats()["heap_batches"] == 0
        if not has_raised:
            break
    assert lines > 15


def test_an_interrupt_while_next_waits_for_the_engine_or_functions_loses_no_batch(make):
    started, go = threading.Event(), threading.Event()

    def wait(sample):
        started.set()
        assert go.wait(support.DEADLINE_S)
        return {"n": label(sample)}

    def handle(number, frame):
        raise Interrupt

    def interrupt():
        started.wait()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        for prefetch in (0, 2):
            started.clear()
            go.clear()
            loader = make(
                order="sequential", name=f"waits-{prefetch}", transform=wait, workers=1, prefetch=prefetch
            )
            iteration = iter(loader)
            helper = threading.Thread(target=interrupt)
            helper.start()
            with pytest.raises(Interrupt):
                next(iteration)
            helper.join()
            assert loader.state_dict()["step"] == 0
            go.set()
            assert [batch.position.step for batch in iteration] == list(range(13))
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_signal_that_comes_just_before_a_wait_for_functions_is_answered_soon(make, monkeypatch):
    """Python begins a handler between two waits; the system ends no wait that has not begun."""
    waits, wait = [], threading.Event.wait

    def noted(event, timeout=None):
        # Not the wait for a thread that starts.
        if sys._getframe(1).f_code.co_filename.endswith("_attention.py"):
            waits.append(timeout)
        return wait(event, timeout)

    go = threading.Event()
    loader = make(order="sequential", transform=lambda sample: wait(go) and label(sample), workers=1)
    monkeypatch.setattr(threading.Event, "wait", noted)
    helper = threading.Timer(0.7, go.set)
    helper.start()
    next(iter(loader))
    helper.join()
    assert len(waits) > 3
    assert max(waits) <= 0.2


@pytest.mark.parametrize(
    "functions", [{}, {"transform": lambda sample: sample, "collate": "list", "workers": 2}]
)
def test_a_warning_that_is_an_error_loses_no_batch(make, small_records, functions):
    loader = make(order="sequential", batch_size=4, **functions)
    kept, warned = [], []
    iteration = iter(loader)
    while True:
        before = len(kept)
        try:
            kept.extend(itertools.islice(iteration, 1))
        except RuntimeWarning as warning:
            warned.append(str(warning))
            continue
        if len(kept) == before:
            break
    assert ["batch buffers" in one for one in warned] == [True]
    numbers = np.concatenate([batch.indices for batch in kept])
    assert numbers.tolist() == list(range(100))
    for batch in kept:
        assert [bytes(row) for row in batch["data"]] == [small_records[number] for number in batch.indices]


class Slow:
    """An engine that has no batch ready until it is told to."""

    def __init__(self, engine):
        self.engine, self.is_slow, self.waits = engine, True, 0
        self.steps = engine.steps

    def is_ready(self, number):
        return not self.is_slow and self.engine.is_ready(number)

    def next(self, number, taken):
        self.waits += self.is_slow
        self.engine.next(number, taken)


def test_a_finished_batch_is_not_held_up_by_the_engine(make):
    loader = make(order="sequential", transform=lambda sample: {"n": label(sample)}, workers=2, prefetch=3)
    iteration = iter(loader)
    next(iteration)
    support.wait_until(lambda: iteration._engine.is_ready(iteration._number), "the engine")
    steps = [next(iteration).position.step]
    iteration._engine = slow = Slow(iteration._engine)
    under_way = len(iteration._works)
    assert under_way > 0
    for _ in range(under_way):
        assert slow.waits == 0
        steps.append(next(iteration).position.step)
    # Nothing is under way any more.
    assert (slow.waits, len(iteration._works)) == (0, 0)
    steps.append(next(iteration).position.step)
    assert slow.waits == 1
    slow.is_slow = False
    steps += [batch.position.step for batch in iteration]
    assert steps == list(range(1, 13))
    assert slow.waits == 1
