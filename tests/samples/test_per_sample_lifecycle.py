"""Functions of samples: threads, interrupts and forks leave nothing behind."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings

import pytest

import forebay
import support
from forebay._samples import crew as crews
from support.ranks.functions import label


def own_threads():
    return [one for one in threading.enumerate() if one.name.startswith("forebay-train")]


def test_threads_end_with_the_loader(make, small_lmdb):
    loader = make(workers=3, transform=label)
    iter(loader)
    assert own_threads() == []
    iteration = iter(loader)
    next(iteration)
    assert len(own_threads()) == 3
    loader.close()
    assert own_threads() == []
    # One that is dropped, in the middle and with an iterator.
    dropped = forebay.Loader(small_lmdb, 8, workers=2, transform=label, node_memory="16MiB")
    dropped_iteration = iter(dropped)
    next(dropped_iteration)
    del dropped, dropped_iteration
    support.wait_until(lambda: not own_threads(), "the threads to end")
    assert not crews._living


def test_no_cycle_keeps_a_loader_whose_function_raised(small_lmdb):
    def fail(sample):
        raise ValueError("broken")

    gc.collect()
    gc.disable()
    try:
        loader = forebay.Loader(small_lmdb, 8, workers=2, transform=fail, node_memory="16MiB")
        with pytest.raises(ValueError, match="broken"):
            next(iter(loader))
        del loader
        support.wait_until(lambda: not own_threads(), "the threads to end")
    finally:
        gc.enable()


def test_a_break_cancels_what_is_under_way_and_gives_back_its_buffers(make):
    started, go = threading.Semaphore(0), threading.Event()
    calls = itertools.count()

    def wait(sample):
        if next(calls) >= 8:
            started.release()
            assert go.wait(support.DEADLINE_S)
        return label(sample)

    loader = make(order="sequential", workers=2, prefetch=3, transform=wait)
    for _ in loader:
        started.acquire()
        started.acquire()
        break
    go.set()
    loader.close()
    # Each of the two threads finished its sample, and began no other.
    assert next(calls) == 10


def test_close_is_possible_within_a_function_and_while_another_thread_waits(make):
    loader = make(workers=2, prefetch=1, transform=label, batch_transform=lambda batch: loader.close())
    with pytest.raises(forebay.ForebayError, match="stale"):
        next(iter(loader))
    started, go = threading.Event(), threading.Event()

    def wait(sample):
        started.set()
        assert go.wait(support.DEADLINE_S)
        return label(sample)

    waited = make(name="waited", workers=1, transform=wait)
    found = []

    def take():
        try:
            next(iter(waited))
        except forebay.ForebayError as error:
            found.append(str(error))

    thread = threading.Thread(target=take)
    thread.start()
    started.wait()
    closing = threading.Thread(target=waited.close)
    closing.start()
    support.wait_until(lambda: not waited._finalizer.alive, "the loader to be closed")
    go.set()
    thread.join()
    closing.join()
    assert len(found) == 1
    assert "stale" in found[0]


def test_an_interrupt_leaves_the_loader_as_it_was(make):
    step_3 = threading.Event()

    def interrupt(sample):
        number = label(sample)
        if not step_3.is_set() and loader.state_dict()["step"] == 3:
            step_3.set()
            os.kill(os.getpid(), signal.SIGINT)
            # Long enough that the script waits.
            time.sleep(0.2)
        return {"n": number}

    expected = [
        batch["n"].tolist()
        for batch in make(order="shuffle", name="plain", transform=lambda s: {"n": label(s)})
    ]
    loader = make(order="shuffle", workers=2, prefetch=0, transform=interrupt)
    iteration = iter(loader)
    found = [next(iteration)["n"].tolist() for _ in range(3)]
    with pytest.raises(KeyboardInterrupt):
        next(iteration)
    assert loader.state_dict()["step"] == 3
    found += [batch["n"].tolist() for batch in iteration]
    assert found == expected
    assert len(list(loader)) == 13


def test_a_forked_child_says_so_and_ends(make, says):
    loader = make(order="sequential", workers=2, transform=label)
    iteration = iter(loader)
    next(iteration)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            for use in (lambda: next(iteration), lambda: next(iter(loader))):
                try:
                    use()
                except forebay.ForebayError as error:
                    code = 0 if "forked" in str(error) else 2
            loader.close()
            del iteration
            with forebay.Loader(
                loader.dataset.paths[0], 8, name="child", transform=label, node_memory="16MiB"
            ) as own:
                assert len(list(own)) == 13
        except BaseException:
            code = 3
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(iteration)) == 12


PROGRAM = """
import sys, time
import forebay

def slow(sample):
    time.sleep(0.01)
    return sample["data"]

loader = forebay.Loader(sys.argv[1], 8, node_memory="16MiB", workers=3, prefetch=2, transform=slow)
for batch in loader:
    print("begun", flush=True)
    {end}
"""


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("break", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('end')", 1),
        ("kept = iter(loader); next(kept); break", 0),
    ],
)
def test_a_program_ends_in_the_middle_of_work(small_lmdb, end, status):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{end}", end), str(small_lmdb)],
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("ValueError: end" in done.stderr) == (status == 1)
    assert status == 1 or done.stderr == ""


def test_ctrl_c_ends_a_program(small_lmdb):
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.replace("{end}", "pass").replace("0.01", "0.05"), str(small_lmdb)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout.readline() == "begun\n"
    program.send_signal(signal.SIGINT)
    _, error = program.communicate(timeout=support.DEADLINE_S)
    assert program.returncode in (-signal.SIGINT, 130)
    assert error.rstrip().endswith("KeyboardInterrupt")


@pytest.mark.parametrize("options", ["workers=2", "workers=2, worker_kind='process'"])
def test_a_program_that_ends_begins_no_sample_that_was_to_be_prefetched(small_lmdb, tmp_path, options):
    program = f"""
import time, forebay

def note(sample):
    time.sleep(0.06)
    with open({str(tmp_path / "begun")!r}, "a") as file:
        file.write("x")
    return sample

if __name__ == "__main__":
    loader = forebay.Loader({str(small_lmdb)!r}, 32, transform=note, {options}, prefetch=4, node_memory="32MiB")
    for batch in loader:
        raise SystemExit("the script ends")
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=support.DEADLINE_S, check=False
    )
    assert done.stderr.rstrip() == "the script ends"
    # Those of the first batch, and what was under way: a sample of each thread, a part of each
    # process. With all that was to be prefetched there would be 160.
    assert len((tmp_path / "begun").read_text()) < 110


def test_where_threads_are_refused_fewer_do_the_work(make, monkeypatch):
    start, allowed = threading.Thread.start, itertools.count()

    def refuse(thread):
        if thread.name.startswith("forebay-") and next(allowed) >= limit:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    expected = None
    for limit in (9, 1, 0):
        allowed = itertools.count()
        loader = make(order="sequential", workers=3, transform=label, name=f"at-most-{limit}")
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            batches = [batch.tolist() for batch in loader]
        expected = expected or batches
        assert batches == expected
        assert [one.category for one in found] == ([RuntimeWarning] if limit < 3 else [])
