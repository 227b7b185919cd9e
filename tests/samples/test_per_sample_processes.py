"""Functions of samples in processes: the same batches as in threads, and nothing left behind."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import random
import signal
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import forebay
import support
from forebay._samples.processes import chunk_samples
from support import format_files, worker_functions
from support.ranks import functions


def workers():
    """Return the process ids of the children of this process that run functions, or have."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, parent = (path / "stat").read_text().rpartition(")")[2].split()[:2]
            command = (path / "cmdline").read_text()
            if parent == str(os.getpid()) and (state == "Z" or "forebay._samples.worker" in command):
                found.add(int(path.name))
    return found


def flat(value):
    """Return a value with the bytes of its arrays, to be compared."""
    if isinstance(value, np.ndarray):
        return value.dtype.descr, value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: flat(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return type(value), [flat(one) for one in value]
    return value


# --- the same as in threads ---


@pytest.mark.parametrize(
    ("order", "processes", "prefetch", "collate"),
    [
        ("sequential", 1, 0, "stack"),
        ("shuffle", 2, 2, {"whole": "ragged", "large": "pad", ...: "list"}),
        ("group", 3, 5, "list"),
    ],
)
def test_batches_are_those_of_threads(make, order, processes, prefetch, collate):
    def batches(name, **arguments):
        options = {"order": order, "seed": 4, "collate": collate, "transform": worker_functions.everything}
        loader = make(name=name, prefetch=prefetch, **options, **arguments)
        found = [(batch.position, batch.indices.tolist(), flat(batch)) for _ in range(2) for batch in loader]
        assert loader.stats()["heap_batches"] == 0 or collate != "stack"
        return found, loader.state_dict()

    assert batches("processes", workers=processes, worker_kind="process") == batches("threads", workers=1)


@pytest.mark.parametrize("kind", format_files.FORMATS)
def test_samples_of_every_format_are_those_of_threads(tmp_path, kind):
    dataset = format_files.opened(format_files.write(tmp_path / kind, kind, 3), kind)
    found = []
    for name, arguments in {
        "threads": {"workers": 2},
        "processes": {"workers": 1, "worker_kind": "process"},
    }.items():
        options = {
            "order": "shuffle",
            "transform": worker_functions.digest,
            "node_memory": "64MiB",
            "name": name,
        }
        with forebay.Loader(dataset, 8, **options, **arguments) as loader:
            found.append([(batch.indices.tolist(), flat(batch)) for batch in loader])
    assert found[0] == found[1]


def test_a_sample_is_augmented_alike_on_ranks_and_after_a_resume(pool, small_lmdb):
    def options(ranks, **more):
        return {
            "batch_size": 16 // ranks,
            "order": "shuffle",
            "seed": 5,
            "last_batch": "drop",
            "prefetch": 3,
            **more,
        }

    def steps(outcomes):
        ranks = [one["found"] for one in outcomes]
        return [sorted(one for rank in step for one in rank) for step in zip(*ranks, strict=True)]

    path = str(small_lmdb)
    alone = steps(pool.run(1, functions.deliver, path=path, options=options(1, workers=2), epochs=2))
    first = pool.run(
        2,
        functions.deliver,
        path=path,
        options=options(2, workers=1, worker_kind="process"),
        epochs=1,
        stop=4,
    )
    state = first[0]["state"]
    second = pool.run(
        1,
        functions.deliver,
        path=path,
        options=options(1, workers=1, worker_kind="process"),
        epochs=2,
        state=state,
    )
    assert steps(first) + steps(second) == alone


def test_a_resume_at_random_steps_is_exact(make):
    choose = random.Random(3)

    def loader(name):
        return make(
            order="shuffle",
            seed=9,
            workers=1,
            worker_kind="process",
            prefetch=choose.randrange(4),
            name=name,
            transform=functions.digest,
        )

    def facts(batch):
        return batch.indices.tolist(), batch["sum"].tolist(), batch["random"].tolist()

    whole = [facts(batch) for one in [loader("whole")] for _ in range(2) for batch in one]
    steps = len(whole) // 2
    for number, at in enumerate(choose.sample(range(1, 2 * steps), 2)):
        first = loader(f"first{number}")
        last = list(itertools.islice((batch for _ in range(2) for batch in first), at))[-1]
        state = (first.state_at(last.position), first.state_dict())[number % 2]
        first.close()
        second = loader(f"second{number}")
        second.load_state_dict(state)
        assert [facts(batch) for _ in range(2 - state["epoch"]) for batch in second] == whole[at:]
        second.close()


def test_results_of_any_length_come_whole(make):
    options = {"order": "shuffle", "batch_size": 20, "collate": "ragged"}
    loader = make(workers=2, worker_kind="process", transform=worker_functions.of_any_length, **options)
    plain = make(name="plain", order="shuffle", batch_size=20)
    for batch, other in zip(loader, plain, strict=True):
        expected = [np.full(number * number * 128, number) for number in other.indices.tolist()]
        assert np.diff(batch.offsets).tolist() == list(map(len, expected))
        assert np.array_equal(batch.values, np.concatenate(expected))


def test_a_function_may_keep_the_arrays_that_it_gets(make, small_records):
    loader = make(
        order="shuffle", workers=1, worker_kind="process", transform=worker_functions.keep, collate="list"
    )
    kept, expected = 0, 0
    for _ in range(2):
        for batch in loader:
            expected += sum(number % 3 == 0 for number in batch.indices.tolist())
            for number, data in zip(batch.indices.tolist(), batch["data"], strict=True):
                assert bytes(data) == small_records[number]
                assert data.flags.writeable
            kept = max(kept, *batch["kept"])
    assert kept == expected


def test_shared_memory_is_used_again(make):
    loader = make(
        order="sequential", batch_size=50, workers=1, worker_kind="process", transform=worker_functions.views
    )
    list(loader)
    pipes = loader._pipeline.processes._workers[0]._life.pipes
    areas = [pipe.area for pipe in pipes]
    for _ in range(3):
        list(loader)
    assert [pipe.area for pipe in pipes] == areas
    assert None not in areas


def test_results_that_the_script_keeps_stay_as_they_are(make, small_records):
    loader = make(
        order="sequential",
        workers=1,
        worker_kind="process",
        transform=worker_functions.everything,
        collate="list",
    )
    kept = list(loader)
    for batch in kept:
        for number, back in zip(batch.indices.tolist(), batch["back"], strict=True):
            assert bytes(back[::-1])[1:] == small_records[number][1:]
    assert loader.stats()["heap_batches"] == 0


def test_a_function_with_arguments_of_its_own_is_sent_with_them(make):
    table = np.arange(256) ** 2
    function = worker_functions.Scaled(table)
    threads = [batch.tolist() for batch in make(order="sequential", name="threads", transform=function)]
    loader = make(order="sequential", workers=1, worker_kind="process", transform=partial(function))
    assert [batch.tolist() for batch in loader] == threads


def test_results_that_have_arrays_come_as_arrays(make, says):
    loader = make(order="sequential", workers=1, worker_kind="process", transform=worker_functions.tensor)
    (x,) = {batch["x"].dtype for batch in loader}
    assert x == np.int64
    lists = make(
        order="sequential",
        workers=1,
        worker_kind="process",
        transform=worker_functions.tensor,
        collate="list",
        name="list",
    )
    assert isinstance(next(iter(lists))["x"][3], worker_functions.Tensor)
    device = make(
        order="sequential",
        workers=1,
        worker_kind="process",
        transform=worker_functions.tensor_on_a_device,
        name="device",
    )
    with pytest.raises(forebay.OptionError, match="cuda:0"):
        next(iter(device))


def test_the_example_of_a_batch_is_that_of_threads(make):
    found = []
    for name, arguments in {
        "threads": {"workers": 2},
        "processes": {"workers": 1, "worker_kind": "process"},
    }.items():
        loader = make(name=name, transform=worker_functions.everything, **arguments)
        found.append(flat(loader._pipeline.functions.example(loader.dataset, 3)))
    assert found[0] == found[1]
    assert found[0]["text"][1][0] == "sample 0"


# --- errors ---


def test_an_error_comes_at_its_own_step_with_the_traceback_of_the_worker(make):
    iteration = iter(
        make(
            order="sequential", workers=2, worker_kind="process", prefetch=4, transform=worker_functions.fail
        )
    )
    assert [next(iteration)["n"].tolist() for _ in range(2)] == [list(range(8)), list(range(8, 16))]
    with pytest.raises(KeyError) as error:
        next(iteration)
    assert error.value.args == (18,)
    traceback, place = error.value.__notes__
    assert place == "in transform= of loader 'train': sample 18, epoch 0, step 2"
    assert traceback.startswith("in worker process ")
    assert "raise KeyError(number_of(rng))" in traceback
    assert next(iteration)["n"].tolist() == list(range(24, 32))
    assert [batch["n"][0] for batch in itertools.islice(iteration, 2)] == [32, 40]
    with pytest.raises(KeyError):
        next(iteration)
    assert next(iteration).position.step == 7


def test_bad_samples_are_replaced_as_in_threads(make):
    found = []
    for name, arguments in {
        "threads": {"workers": 2},
        "processes": {"workers": 2, "worker_kind": "process"},
    }.items():
        loader = make(
            order="shuffle", name=name, bad_samples="skip", transform=worker_functions.unlucky, **arguments
        )
        with pytest.warns(RuntimeWarning, match="is replaced by"):
            batches = [(batch.indices.tolist(), flat(batch)) for _ in range(2) for batch in loader]
        found.append((batches, loader.bad_samples(), loader.stats()["replaced_samples"]))
    assert found[0] == found[1]
    assert found[0][1]


@pytest.mark.parametrize(
    ("function", "kind", "words"),
    [
        (worker_functions.fail_strangely, forebay.ForebayError, "TwoArgumentsError: 1"),
        (worker_functions.exit_, SystemExit, "3"),
        (worker_functions.unsendable, forebay.OptionError, "cannot be sent to the loader"),
    ],
)
def test_what_cannot_be_sent_is_an_error_of_its_sample(make, function, kind, words):
    loader = make(order="sequential", workers=1, worker_kind="process", transform=function)
    with pytest.raises(kind, match=words) as error:
        next(iter(loader))
    number = 5 if function is worker_functions.unsendable else 0
    assert error.value.__notes__[-1] == f"in transform= of loader 'train': sample {number}, epoch 0, step 0"


@pytest.mark.parametrize("bad_samples", ["raise", "skip"])
def test_a_worker_that_dies_is_an_error_that_names_the_signal_and_the_sample(make, bad_samples):
    loader = make(
        order="sequential",
        workers=2,
        worker_kind="process",
        prefetch=1,
        bad_samples=bad_samples,
        transform=worker_functions.die,
    )
    iteration, found, errors = iter(loader), [], []
    while True:
        try:
            found.append(next(iteration)["n"].tolist())
        except StopIteration:
            break
        except forebay.ForebayError as error:
            errors.append(error)
    expected = [list(range(first, min(first + 8, 100))) for first in range(0, 100, 8)]
    assert found == [step for step in expected if not {19, 42, 77} & set(step)]
    for error, how, number in zip(
        errors,
        ("was ended by SIGKILL", "was ended by SIGSEGV", "ended with status 7"),
        (19, 42, 77),
        strict=True,
    ):
        assert f"{how} while it worked on sample {number}\n" in str(error)
        assert error.__notes__ == [
            f"in transform= of loader 'train': sample {number}, epoch 0, step {number // 8}"
        ]
    loader.close()
    assert workers() == set()


def test_a_child_of_a_worker_that_outlives_it_hides_no_death(make):
    loader = make(
        order="sequential", workers=1, worker_kind="process", transform=worker_functions.leave_a_child
    )
    with pytest.raises(forebay.ForebayError, match="SIGKILL while it worked on sample 3"):
        next(iter(loader))


def test_a_worker_that_is_killed_between_requests_is_replaced(make):
    loader = make(
        order="sequential", workers=1, worker_kind="process", prefetch=0, transform=worker_functions.pid
    )
    iteration, pids = iter(loader), set()
    for pids_of_batch in iteration:
        (pid,) = set(pids_of_batch.tolist())
        pids.add(pid)
        if len(pids) <= 3:
            os.kill(pid, signal.SIGKILL)
    assert len(pids) == 4


# --- what is sent ---


def sample_of_nothing(sample):
    return 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"transform": lambda sample: 1, "workers": 2, "worker_kind": "process"},
        {"transform": threading.Lock().__enter__, "workers": 2, "worker_kind": "process"},
        {"transform": sample_of_nothing, "workers": 0, "worker_kind": "process"},
        {"transform": sample_of_nothing, "workers": 257, "worker_kind": "process"},
        {"transform": sample_of_nothing, "workers": True, "worker_kind": "process"},
        {"transform": sample_of_nothing, "worker_kind": "fibre"},
        {"transform": sample_of_nothing, "workers": 1025},
        {"batch_transform": len, "workers": 2, "worker_kind": "process"},
        {"workers": 2, "worker_kind": "process"},
    ],
)
def test_wrong_use_is_told_when_the_loader_is_made(make, arguments):
    with pytest.raises(forebay.OptionError, match=r"^(workers|worker_kind)="):
        make(**arguments)


def test_workers_are_what_the_options_say_or_one_for_each_core(make, monkeypatch):
    def workers(**arguments):
        facts = make(**arguments).config.per_sample
        return facts and (facts.worker_kind, facts.workers, facts.threads)

    monkeypatch.setenv("FOREBAY_WORKER_KIND", "process")
    kind, number, threads = workers(transform=sample_of_nothing, name="cores")
    assert (kind, threads) == ("process", 2 * number)
    assert 1 <= number <= len(os.sched_getaffinity(0))
    monkeypatch.setenv("FOREBAY_WORKERS", "3")
    assert workers(transform=sample_of_nothing) == ("process", 3, 6)
    assert workers(transform=sample_of_nothing, worker_kind="thread", name="threads") == ("thread", 3, 3)
    assert workers(name="plain") is None
    assert workers(batch_transform=len, name="batch") == ("thread", 3, 3)


SCRIPT = """
import sys
import forebay

def prepare(sample):
    return sample["data"][:2]

def train():
    with forebay.Loader(sys.argv[1], 8, order="sequential", node_memory="16MiB", workers=2, worker_kind="process",
                        transform=prepare) as loader:
        print(sum(int(batch.sum()) for batch in loader))

{end}
"""


def run_script(tmp_path, end, *arguments, before=()):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("{end}", end))
    return subprocess.run(
        [sys.executable, "-W", "error", *(before or [script]), *map(str, arguments)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=support.DEADLINE_S,
        check=False,
    )


@pytest.mark.full
def test_a_function_of_a_guarded_script_works_and_of_another_one_is_an_error(
    tmp_path, small_lmdb, small_records
):
    expected = sum(record[0] + record[1] for record in small_records)
    guarded = "if __name__ == '__main__':\n    train()"
    spawned = (
        "if __name__ == '__main__':\n"
        "    from multiprocessing import get_context\n"
        "    rank = get_context('spawn').Process(target=train)\n"
        "    rank.start()\n"
        "    rank.join()"
    )
    for end, before in ((guarded, []), (guarded, ["-m", "script"]), (spawned, [])):
        done = run_script(tmp_path, end, small_lmdb, before=before)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{expected}\n", "")
    done = run_script(tmp_path, "train()", small_lmdb)
    assert done.returncode == 1
    assert 'under if __name__ == "__main__"' in done.stderr
    done = run_script(tmp_path, guarded, small_lmdb, before=["-c", SCRIPT.replace("{end}", guarded)])
    assert "notebook or on a command line" in done.stderr


def test_a_module_that_a_worker_cannot_import_is_an_error(make, monkeypatch):
    module = type(sys)("only_here")
    exec("def function(sample): pass", module.__dict__)
    monkeypatch.setitem(sys.modules, "only_here", module)
    loader = make(transform=module.function, workers=1, worker_kind="process")
    iteration = iter(loader)
    for _ in range(2):
        with pytest.raises(forebay.ForebayError, match="cannot load transform=: ModuleNotFoundError"):
            next(iteration)


# --- nothing is left behind ---


def test_processes_end_with_the_loader(make, small_lmdb):
    loader = make(workers=2, worker_kind="process", transform=worker_functions.pid)
    assert workers() == set()
    first = next(iter(loader)).tolist()
    assert set(first) <= workers()
    assert len(workers()) == 2
    for _ in loader:
        break
    assert len(workers()) == 2
    loader.close()
    assert workers() == set()
    dropped = forebay.Loader(
        small_lmdb, 8, workers=2, worker_kind="process", transform=worker_functions.slow, node_memory="16MiB"
    )
    iteration = iter(dropped)
    next(iteration)
    del dropped, iteration
    gc.collect()
    support.wait_until(lambda: workers() == set(), "the processes to end")

    def has_threads():
        return any(one.name.startswith("forebay-train") for one in threading.enumerate())

    # A loader that is dropped does not wait for them.
    support.wait_until(lambda: not has_threads(), "the threads to end")


def test_a_worker_ignores_interrupts(make):
    loader = make(workers=1, worker_kind="process", transform=worker_functions.ignores_interrupts)
    assert len(list(loader)) == 13


def test_a_forked_child_leaves_the_processes_alone(make):
    loader = make(order="sequential", workers=2, worker_kind="process", transform=worker_functions.pid)
    iteration = iter(loader)
    next(iteration)
    pid = os.fork()
    if pid == 0:
        try:
            loader.close()
            loader._pipeline.processes.end()
            del iteration, loader
            gc.collect()
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert len(list(iteration)) == 12


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[2])
import forebay
from support import worker_functions

loader = forebay.Loader(sys.argv[1], 8, node_memory="16MiB", workers=2, worker_kind="process",
                        transform=worker_functions.{function})
for batch in loader:
    print(*sorted(set(batch.tolist())), flush=True)
    {end}
"""


def start(program, small_lmdb, tmp_path):
    command = [sys.executable, "-c", program, str(small_lmdb), str(support.ROOT / "tests")]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=tmp_path, text=True, start_new_session=True, **pipes)


def is_gone(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("break", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('end')", 1),
        ("kept = iter(loader); next(kept); break", 0),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", -2),
    ],
)
def test_no_process_outlives_a_program(small_lmdb, tmp_path, end, status):
    program = start(PROGRAM.replace("{function}", "slow").replace("{end}", end), small_lmdb, tmp_path)
    out, error = program.communicate(timeout=support.DEADLINE_S)
    assert program.returncode == status, error
    pids = set(map(int, out.split()))
    assert pids
    support.wait_until(lambda: all(map(is_gone, pids)), "the processes to end")
    assert status in (1, -2) or error == ""


def test_a_function_that_never_returns_ends_with_its_program(small_lmdb, tmp_path):
    program = start(PROGRAM.replace("{function}", "stuck").replace("{end}", "pass"), small_lmdb, tmp_path)
    support.wait_until(lambda: len(list(tmp_path.glob("called-*"))) == 2, "both processes")
    pids = [int(path.name.partition("-")[2]) for path in tmp_path.glob("called-*")]
    program.kill()
    program.communicate()
    support.wait_until(lambda: all(map(is_gone, pids)), "the processes to end")


# --- sizes ---


@pytest.mark.parametrize(
    ("seconds", "samples", "pipes", "chunk"),
    [
        (None, 256, 4, 1),
        (1e-3, 256, 4, 4),
        (1e-6, 256, 4, 64),
        (1e-6, 250, 4, 63),
        (0.0, 8, 4, 2),
        (1e-6, 3, 4, 1),
        (1.0, 256, 4, 1),
    ],
)
def test_requests_take_a_few_milliseconds(seconds, samples, pipes, chunk):
    assert chunk_samples(seconds, samples, pipes) == chunk
