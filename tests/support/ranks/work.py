"""What ranks do in tests: each function runs in a process of :mod:`support.ranks.pool`."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import forebay
import forebay_lab
import support
from forebay import Config
from support.ranks import nodes

MEMORY = "32MiB"


@functools.cache
def records(path: str) -> list[bytes]:
    """All records of a database, as py-lmdb reads them."""
    import lmdb

    with (
        lmdb.open(path, readonly=True, lock=False, subdir=os.path.isdir(path)) as environment,  # noqa: PTH112
        environment.begin() as transaction,
    ):
        return [bytes(value) for value in transaction.cursor().iternext(keys=False)]


def make(path: str | forebay.Dataset, world: Mapping[str, Any], options: Mapping[str, Any]) -> forebay.Loader:
    """Make a loader from arguments of Group and Strategy; ``given`` seeds an explicit order."""
    options = {"node_memory": MEMORY, **options}
    if (group := options.pop("group", None)) is not None:
        options["order"] = forebay.Group(**group)
    if isinstance(strategy := options.get("strategy"), str | dict):
        options["strategy"] = forebay_lab.strategy(strategy)
    if (given := options.pop("given", None)) is not None:
        samples = len(records(path))
        options["order"] = lambda epoch: given_ids(samples, given, epoch)
    return forebay.Loader(path, world=forebay.World(**nodes.with_comm(dict(world))), **options)


def given_ids(samples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch that tests give."""
    return np.random.default_rng([seed, epoch]).permutation(samples)


def check(path: str, batch: Any) -> list[int]:
    """Compare the bytes of a batch with py-lmdb's and return its ids."""
    ids = [int(number) for number in batch.indices]
    expected = records(path)
    assert len(batch["data"]) == len(ids)
    for row, number in zip(batch["data"], ids, strict=True):
        assert row.tobytes() == expected[number], f"sample {number} has wrong bytes"
    return ids


def deliver(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int = 1,
    state: Mapping[str, Any] | None = None,
    stop: int | None = None,
) -> dict[str, Any]:
    """Go through epochs and return the ids of each step, and what the loader says of itself.

    With ``stop``, break off after that many steps in all and return the state.
    """
    with make(path, world, options) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found: list[list[list[int]]] = []
        left = stop
        for _ in range(epochs):
            found.append([])
            if left == 0:
                break
            for batch in loader:
                found[-1].append(check(path, batch))
                if left is not None:
                    left -= 1
                    if left == 0:
                        break
            if left == 0:
                break
        return {
            "found": found,
            "state": loader.state_dict(),
            "steps": len(loader),
            "config": loader.config,
            "stats": loader.stats(),
        }


def deliver_each(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, strategies: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Iterate two epochs with each strategy, over one communicator; return ids and configs."""
    world = nodes.with_comm(dict(world))
    found: dict[str, dict[str, Any]] = {}
    for strategy in strategies:
        with make(path, world, {**options, "strategy": strategy}) as loader:
            ids = [[check(path, batch) for batch in loader] for _ in range(2)]
            found[strategy] = {"found": ids, "config": loader.config}
    return found


def samples(
    path: str | Sequence[str],
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    opening: Mapping[str, Any] | None = None,
) -> list[tuple[list[int], dict[str, list[bytes]]]]:
    """Iterate an epoch of any format; return each step's ids and its samples' bytes, by field."""
    with make(forebay.open(path, **(opening or {})), world, {"expected_epochs": 1, **options}) as loader:
        return [
            (
                [int(number) for number in batch.indices],
                {name: [np.asarray(row).tobytes() for row in rows] for name, rows in batch.items()},
            )
            for batch in loader
        ]


def act(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    actions: Sequence[Mapping[str, Any]],
    rest: bool = False,
) -> list[list[Any]]:
    """Play a script of passes; return (epoch, first step, ids by step) of each.

    An action may have ``epoch`` (set_epoch), ``stop`` (break after so many steps), ``keep`` (hold
    the last so many batches), ``pause`` (seconds between steps), ``scribble`` (write all over each
    batch that is not held), ``drop`` (let go of what is held at the end). With ``rest``, wait at
    the end until told to go.
    """
    passes = []
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*batch buffers of this rank are still in use.*")
        with make(path, world, options) as loader:
            kept: list[Any] = []
            for action in actions:
                if action.get("epoch") is not None:
                    loader.set_epoch(action["epoch"])
                steps: list[list[int]] = []
                iteration = iter(loader)
                begun = None
                for batch in iteration:
                    begun = begun or batch.position
                    steps.append(check(path, batch))
                    kept.append(batch)
                    del kept[: len(kept) - action.get("keep", 0)]
                    if not kept and action.get("scribble"):
                        for row in batch["data"]:
                            row[:] = 0xAA
                    if action.get("pause"):
                        time.sleep(action["pause"])
                    if len(steps) == action.get("stop"):
                        break
                del iteration
                batch = None
                for one in kept:
                    check(path, one)
                if action.get("drop"):
                    kept.clear()
                passes.append([*begun, steps])
            if rest:
                pipe.send("resting")
                pipe.recv()
    for one in kept:
        check(path, one)
    return passes


def staggered(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, groups: int
) -> dict[str, Any]:
    """Iterate two epochs; rank 0 sets the number of groups in between; return what config reports.

    Between them each waits until told to go, rank 0 twice.
    """
    with make(path, world, options) as loader:
        steps = sum(len(check(path, batch)) > 0 for batch in loader)
        before = loader.config.now.stagger_groups
        pipe.send("half")
        pipe.recv()
        if loader.world.rank == 0:
            loader.set_stagger(groups)
            pipe.send("set")
            pipe.recv()
        steps += sum(len(check(path, batch)) > 0 for batch in loader)
        return {"before": before, "after": loader.config.now.stagger_groups, "steps": steps}


def made(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> Config:
    """Make a loader, close it, and return what it decided."""
    with make(path, world, options) as loader:
        return loader.config


def made_beside(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> list[Config]:
    """Make a loader, one beside it, one after both; return what each decided. Keep closed ones."""
    with (
        make(path, world, {**options, "name": "first"}) as first,
        make(path, world, {**options, "name": "second"}) as second,
    ):
        pass
    with make(path, world, {**options, "name": "third"}) as third:
        return [loader.config for loader in (first, second, third)]


def walk(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, stop: int | None = None
) -> dict[str, Any]:
    """Iterate epochs without end, or ``stop`` steps and no more; return the error that ends it.

    Says "made", then "walking" at the second step, or "resting" at the stop; then waits there until
    told to go.
    """
    loader = make(path, world, options)
    pipe.send("made")
    error: forebay.PeerLostError | None = None
    steps = 0
    try:
        while True:
            for batch in loader:
                check(path, batch)
                steps += 1
                if steps == 2 and stop is None:
                    pipe.send("walking")
                if steps == stop:
                    pipe.send("resting")
                    pipe.recv()
    except forebay.PeerLostError as lost:
        error = lost
        lost.__traceback__ = None
    # Told again, not forgotten.
    try:
        next(iter(loader))
        again = "nothing"
    except forebay.PeerLostError as lost:
        again = str(lost)
    loader.close()
    # Closing twice, and after a loss, is no trouble.
    loader.close()
    del loader
    batch = None
    gc.collect()
    return {"message": str(error), "again": again, "steps": steps, "memory": shared_memory()}


def shared_memory() -> list[str]:
    """The shared memory that this process still maps or keeps open."""
    with open("/proc/self/maps") as maps:  # noqa: PTH123
        found = [line.rstrip() for line in maps if "memfd:forebay" in line]
    for number in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            target = os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
        except FileNotFoundError:
            continue
        if "memfd:forebay" in target:
            found.append(target)
    return found


def building(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    pause: float = 1.0,
    fails: bool = False,
) -> dict[str, Any]:
    """Make a loader whose leader says "building" during the index build, then is slow or fails."""
    native = forebay.Strategy.NATIVE
    engine = native.Engine
    said = False
    # A cache per node: a leader that is late must not find the sidecar of another one, and build
    # nothing.
    cache = Path(os.environ["FOREBAY_CACHE_DIR"], f"node-{world.get('node', 0)}")
    cache.mkdir(mode=0o700, exist_ok=True)
    os.environ["FOREBAY_CACHE_DIR"] = str(cache)

    def progress(what: str, done: int, total: int) -> None:
        nonlocal said
        if not said:
            said = True
            pipe.send("building")
            time.sleep(pause)
            if fails:
                raise ValueError("on purpose")

    class Native:
        def __getattr__(self, name: str) -> Any:
            return getattr(native, name)

        def Engine(self, dataset: Any, text: str, **more: Any) -> Any:  # noqa: N802
            return engine(dataset, text, **{**more, "progress": progress})

    forebay.Strategy.NATIVE = Native()
    try:
        with make(path, world, options) as loader:
            return {"message": "", "steps": sum(1 for _ in loader)}
    except (forebay.PeerLostError, forebay.RendezvousError, ValueError) as lost:
        return {"message": str(lost), "steps": 0}
    finally:
        forebay.Strategy.NATIVE = native


@contextlib.contextmanager
def telling_warnings(pipe: Any) -> Iterator[list[str]]:
    """Collect the texts of all warnings; say "warned" at each of them."""
    caught: list[str] = []

    def show(message: Warning | str, *_: object, **__: object) -> None:
        caught.append(str(message))
        if pipe is not None:
            pipe.send("warned")

    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = show
        yield caught


def meeting(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    tries: Sequence[str] = (),
    holds: bool = False,
    warn_after: float | None = None,
) -> list[dict[str, Any]]:
    """Make a loader of each of ``tries``, over one communicator; return errors and warnings.

    Says "meeting" before, and "warned" at each warning where ``warn_after`` is given. With
    ``holds``, says "opening" where the dataset is opened, and waits there until told to go.
    """
    module = importlib.import_module("forebay.loader")
    waiting = importlib.import_module("forebay._job.channel")
    really, patience = module.open, waiting.WARN_AFTER_S

    def when_told(path: str) -> Any:
        pipe.send("opening")
        pipe.recv()
        return really(path)

    pipe.send("meeting")
    module.open = when_told if holds else really
    waiting.WARN_AFTER_S = warn_after or patience
    world = nodes.with_comm(dict(world))
    found = []
    try:
        for one in tries or (path,):
            with telling_warnings(pipe if warn_after is not None else None) as caught:
                outcome: dict[str, Any] = {"kind": "", "message": "", "steps": 0}
                try:
                    with make(one, world, options) as loader:
                        outcome["steps"] = sum(1 for _ in loader)
                except forebay.ForebayError as error:
                    outcome |= {"kind": type(error).__name__, "message": str(error)}
                outcome["warnings"] = caught
                found.append(outcome)
        return found
    finally:
        module.open, waiting.WARN_AFTER_S = really, patience


def crossed(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, taken: int = 0
) -> tuple[str, list[str]]:
    """Iterate another loader than the other rank, after some steps of both; return what it says."""
    said: list[str] = []
    with (
        warnings.catch_warnings(record=True) as caught,
        make(path, world, {**options, "name": "a", "node_memory": "9MiB"}) as first,
        # They share the larger of their budgets.
        make(path, world, {**options, "name": "b", "node_memory": "18MiB"}) as second,
    ):
        warnings.simplefilter("always")
        iterations = [iter(first), iter(second)]
        for _ in range(taken):
            for iteration in iterations:
                next(iteration)
        try:
            for _ in iterations[world["rank"]]:
                pass
        except forebay.RendezvousError as error:
            said.append(str(error))
        pipe.send("failed")
        # The other rank has to see it as well, not the end of this one.
        pipe.recv()
        return said[0], [str(one.message) for one in caught]


def alone(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> int:
    """Iterate on rank 0 while rank 1 waits to be told to close its loader; return the samples."""
    with make(path, world, options) as loader:
        if world["rank"] != 0:
            pipe.send("resting")
            pipe.recv()
            return 0
        told: list[str] = []

        def tell(message: Warning | str, *_: Any, **__: Any) -> None:
            if not told:
                told.append(str(message))
                pipe.send(str(message))

        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = tell
            return sum(len(batch.indices) for batch in loader)


def forking(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> dict[str, Any]:
    """Fork in the middle of an epoch; the child uses and drops everything, the parent goes on."""
    with make(path, world, options) as loader:
        steps = []
        held: list[Any] = []
        children = []
        iteration = iter(loader)
        for number, batch in enumerate(iteration):
            steps.append(check(path, batch))
            held = [*held, batch][-2:]
            if number % 5 == 2:
                child = os.fork()
                if child == 0:
                    os._exit(_in_child(loader, iteration, held))
                children.append(child)
            for one in held:
                check(path, one)
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        return {"found": [steps], "codes": codes}


def _in_child(loader: forebay.Loader, iteration: Any, held: list[Any]) -> int:
    told = 0
    for use in (lambda: next(iteration), lambda: iter(loader), loader.stats, loader.explain):
        try:
            use()
        except forebay.ForebayError as error:
            told += "forked" in str(error)
    held.clear()
    loader.close()
    gc.collect()
    return told


def interrupted(
    path: str,
    options: Mapping[str, Any],
    world: Mapping[str, Any],
    pipe: Any,
    epochs: int,
    rests: bool,
    tally: str | None = None,
) -> dict[str, Any]:
    """Iterate epochs through SIGINT at any moment; with ``rests``, wait for a go once per epoch.

    The file ``tally`` gets a byte for each interrupt.
    """
    found: list[list[list[int]]] = []
    interrupts = 0
    armed = False

    def interrupt(number: int, frame: Any) -> None:
        nonlocal armed, interrupts
        if armed:
            armed = False
            interrupts += 1
            if tally is not None:
                with open(tally, "ab") as file:  # noqa: PTH123
                    file.write(b".")
            raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    with make(path, world, options) as loader:
        while len(found) < epochs:
            # Going back and forth, so that each epoch begins with an agreement.
            loader.set_epoch(2 * (epochs - len(found)))
            iteration = None
            while iteration is None:
                try:
                    armed = True
                    iteration = iter(loader)
                    armed = False
                except KeyboardInterrupt:
                    continue
            steps: list[list[int]] = []
            while True:
                try:
                    armed = True
                    batch = next(iteration)
                    armed = False
                except StopIteration:
                    armed = False
                    break
                except KeyboardInterrupt:
                    continue
                steps.append(check(path, batch))
                if rests and len(steps) == 2:
                    pipe.send("resting")
                    pipe.recv()
            found.append(steps)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return {"found": found, "interrupts": interrupts}


def collected(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> list[str]:
    """Drop a loader in the middle of an epoch without closing it, in a cycle with its own batch."""
    loader = make(path, world, options)
    batch = next(iter(loader))
    cycle = [loader, batch]
    cycle.append(cycle)
    del loader, batch, cycle
    gc.collect()
    return shared_memory()


def views(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> dict[str, Any]:
    """Hold single rows of a closed loader, drop them one by one."""
    with make(path, world, options) as loader:
        iteration = iter(loader)
        rows = []
        for _ in range(2):
            batch = next(iteration)
            rows += [(int(number), row) for number, row in zip(batch.indices, batch["data"], strict=True)]
            del batch
    del loader, iteration
    gc.collect()
    while_held = len(shared_memory())
    writable = all(row.flags.writeable for _, row in rows)
    right = all(row.tobytes() == records(path)[number] for number, row in rows)
    rows.clear()
    gc.collect()
    return {"right": right, "writable": writable, "held": while_held, "left": shared_memory()}


def rested(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, epochs: int = 1
) -> int:
    """Iterate epochs and return the steps; say "resting" after the first, and wait for a go."""
    with make(path, world, options) as loader:
        steps = 0
        for _ in range(epochs):
            for batch in loader:
                check(path, batch)
                steps += 1
                if steps == 1:
                    pipe.send("resting")
                    pipe.recv()
        return steps


def patient(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any
) -> dict[str, list[str]]:
    """Iterate epochs until told to end; say "walking", then "warned" per warning; return them."""
    with telling_warnings(pipe) as caught, make(path, world, options) as loader:
        pipe.send("walking")
        while not pipe.poll():
            for batch in loader:
                check(path, batch)
                time.sleep(0.01)
        pipe.recv()
    return {"warnings": caught}


def walk_with_child(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any
) -> dict[str, Any]:
    """Iterate epochs without end, beside a forked child with a known id; return the final error."""
    loader = make(path, world, options)
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    pipe.send(child)
    message = ""
    try:
        while True:
            for batch in loader:
                check(path, batch)
    except forebay.PeerLostError as lost:
        message = str(lost)
    loader.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return {"message": message}


def closing(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> list[str]:
    """Iterate in a thread until it waits for a rank that rests, then close from the main thread."""
    loader = make(path, world, options)
    steps = 0
    ended: list[str] = []

    def iterate() -> None:
        nonlocal steps
        try:
            while True:
                for batch in loader:
                    check(path, batch)
                    steps += 1
        except forebay.ForebayError as error:
            ended.append(str(error))

    thread = threading.Thread(target=iterate, daemon=True)
    thread.start()
    before = -1
    while steps != before:
        before = steps
        time.sleep(0.5)
    pipe.send("waiting")
    loader.close()
    thread.join(support.DEADLINE_S)
    return ended


def stalled(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, leaves: bool = False
) -> dict[str, Any]:
    """Take a batch, say "begun", wait for a go, take the others; return the error and warnings.

    Before that, say "here" and wait until told to make the loader: ranks make it within the timeout
    of the options.

    With ``leaves``, take none but wait a little, and close.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = {"kind": "", "message": ""}
        # Read while storage answers.
        records(path)
        pipe.send("here")
        pipe.recv()
        loader = make(path, world, options)
        iteration = iter(loader)
        check(path, next(iteration))
        pipe.send("begun")
        pipe.recv()
        try:
            if leaves:
                time.sleep(0.5)
                outcome["kind"] = "left"
            else:
                for batch in iteration:
                    check(path, batch)
        except forebay.ForebayError as error:
            outcome = {"kind": type(error).__name__, "message": str(error)}
        del iteration
        loader.close()
        return {**outcome, "warnings": [str(warning.message) for warning in caught]}


def made_in_a_stall(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any
) -> dict[str, str]:
    """Open a dataset, say "opened", wait for a go, make a loader; return the error."""
    dataset = forebay.open(path)
    pipe.send("opened")
    pipe.recv()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            make(dataset, world, options).close()
        except forebay.ForebayError as error:
            return {"kind": type(error).__name__, "message": str(error)}
    return {"kind": "", "message": ""}


def jumps(path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any) -> dict[str, int]:
    """Meet a stall, jump to another epoch during it, report the error, and retry when told."""
    records(path)
    with warnings.catch_warnings(), make(path, world, options) as loader:
        warnings.simplefilter("ignore")
        iteration = iter(loader)
        check(path, next(iteration))
        pipe.send("begun")
        pipe.recv()
        try:
            for batch in iteration:
                check(path, batch)
        except forebay.StorageError:
            pass
        del iteration
        loader.set_epoch(7)
        try:
            # The start alone: the first batch would wait for storage as well.
            loader._begin(iter(loader))
            pipe.send("nothing")
        except forebay.ForebayError as error:
            pipe.send(type(error).__name__)
        pipe.recv()
        steps = sum(len(check(path, batch)) > 0 for batch in loader)
        return {"epoch": loader.epoch - 1, "steps": steps}


def paced(
    path: str, options: Mapping[str, Any], world: Mapping[str, Any], pipe: Any, kind: str
) -> dict[str, int]:
    """Go through three epochs, the last two after a jump, and say each warning of a wait.

    Says "here" before the loader is made and "begun" at the third step, and goes on when told to.
    One that is "computing" says "resting" there, one that is "late" before the jump; it goes on
    when told to.
    """

    def say(message: Warning | str, *_: object, **__: object) -> None:
        if "no batch for" in str(message):
            pipe.send(str(message))

    def rest() -> None:
        pipe.send("resting")
        pipe.recv()

    pipe.send("here")
    pipe.recv()
    with warnings.catch_warnings(), make(path, world, options) as loader:
        warnings.simplefilter("always")
        warnings.showwarning = say
        steps = 0
        for batch in loader:
            steps += len(check(path, batch)) > 0
            if steps == 3:
                pipe.send("begun")
                pipe.recv()
                if kind == "computing":
                    rest()
        if kind == "late":
            rest()
        loader.set_epoch(5)
        for _ in range(2):
            steps += sum(len(check(path, batch)) > 0 for batch in loader)
        return {"epochs": 3, "steps": steps}
