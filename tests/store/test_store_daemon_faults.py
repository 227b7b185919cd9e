"""A store daemon that is killed, stopped, an impostor or of another user is done without."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys

import pytest

import forebay
import support
from forebay.tools import store
from support import tiering
from support.ranks import tiers, work
from support.ranks.pool import Killed, Raised
from support.store_daemons import Impostor, sealed, socket_of, store_daemons  # noqa: F401
from support.tiering import DATA_BYTES, MEMORY, opening

CHUNK = 1 << 20
CHUNKS = list(range(-(-DATA_BYTES // CHUNK)))
SHARE_BYTES = len(CHUNKS) * CHUNK
NOBODY = 65534
STORE = {"store": "auto"}
PLAIN = {"strategy": "pread"}

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")


@pytest.fixture
def load(tier_data):
    """Make a loader of this process; one without a store for comparison."""

    def load(level=STORE, **options):
        dataset = forebay.open(tier_data.formats["raw"], **opening("raw"))
        return forebay.Loader(dataset, 12, node_memory=MEMORY, **level, **options)

    return load


def deliver(loader):
    with loader:
        return [tiers.step(batch) for batch in loader]


def check_falls_back(load, *, plain=None):
    """Check that a loader delivers from the source, and says that no daemon keeps its share."""
    plain = deliver(load(PLAIN)) if plain is None else plain
    loader = load()
    found = loader.config
    assert [fallback.wanted for fallback in found.fallbacks] == ["kept_share"]
    assert (found.store.kept_bytes, found.store.loaded_bytes) == (0, DATA_BYTES)
    assert not found.store.is_kept
    assert deliver(loader) == plain
    return found.fallbacks[0].reason


# --- a daemon that dies or is stopped ---


def test_a_daemon_that_is_killed_in_the_middle_of_an_epoch_costs_nothing(store_daemons, load):  # noqa: F811
    plain = deliver(load(PLAIN))
    store_daemons.start()
    deliver(load())
    found = []
    with load() as loader:
        for batch in loader:
            found.append(tiers.step(batch))
            if len(found) == 5:
                store_daemons.kill()
    assert (found, loader.config.store.kept_bytes) == (plain, DATA_BYTES)
    # What the killed one left does not hinder the next.
    assert load().config.fallbacks == ()
    store_daemons.start()
    assert len(list(store_daemons.runtime(0).glob("*.sock"))) == 1


def test_a_daemon_that_is_stopped_is_not_waited_for_for_long(store_daemons, load):  # noqa: F811
    plain = deliver(load(PLAIN))
    store_daemons.start()
    with load() as loader:
        store_daemons.signal(signal.SIGSTOP)
        # The next one asks it, and both end without it.
        reason = check_falls_back(lambda **more: load(name="second", **more), plain=plain)
        assert "kill -CONT" in reason
        assert [tiers.step(batch) for batch in loader] == plain
    store_daemons.signal(signal.SIGCONT)
    assert load().config.store.kept_bytes == DATA_BYTES


def test_a_daemon_that_dies_while_a_share_is_loaded_keeps_none(store_daemons, load):  # noqa: F811
    found = json.dumps({"answer": "found", "is_kept": False, "is_shared": False, "unused_bytes": 0})

    def answer(request):
        return (found.encode(), []) if request["ask"] == "find" else None

    with Impostor(store_daemons, answer) as impostor:
        assert "ended" in check_falls_back(load)
    assert [request["ask"] for request in impostor.requests[:2]] == ["find", "keep"]


# --- what comes from a daemon is checked ---


def words(chunks):
    return b"".join(chunk.to_bytes(8, "little") for chunk in chunks)


def kept(memory, chunks):
    """Answer with a share."""
    answer = {"answer": "found", "is_kept": True, "is_shared": False, "unused_bytes": 0}
    return json.dumps(answer).encode(), [memory, chunks]


WRONG = {
    "nothing": lambda: None,
    "no JSON": lambda: (b"hello", []),
    "no answer": lambda: (b"[]", []),
    "another answer": lambda: (b'{"answer": "status"}', []),
    "an older version": lambda: (b'{"answer": "refused", "problem": "expected version 0"}', []),
    "no memory": lambda: (kept(0, 0)[0], []),
    "memory that others write": lambda: kept(
        sealed(b"", SHARE_BYTES, seals=False), sealed(words(CHUNKS), 8 * len(CHUNKS))
    ),
    "a file": lambda: kept(os.open("/etc/passwd", os.O_RDONLY), sealed(words(CHUNKS), 8 * len(CHUNKS))),
    "too little memory": lambda: kept(sealed(b"", SHARE_BYTES - 1), sealed(words(CHUNKS), 8 * len(CHUNKS))),
    "too much memory": lambda: kept(sealed(b"", SHARE_BYTES + CHUNK), sealed(words(CHUNKS), 8 * len(CHUNKS))),
    "chunks out of order": lambda: kept(
        sealed(b"", SHARE_BYTES), sealed(words(CHUNKS[::-1]), 8 * len(CHUNKS))
    ),
    "a piece of a chunk number": lambda: kept(sealed(b"", CHUNK), sealed(b"1234567", 7)),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_a_daemon_sends_is_checked_before_use(store_daemons, load, wrong):  # noqa: F811
    with Impostor(store_daemons, lambda _: WRONG[wrong]()):
        check_falls_back(load)


def test_only_chunks_that_are_wanted_are_taken_from_a_share(store_daemons, load, tier_data):  # noqa: F811
    plain = deliver(load(PLAIN))
    source = tier_data.formats["raw"].read_bytes()
    have = [1, 3, 10**6]
    content = source[CHUNK : 2 * CHUNK] + source[3 * CHUNK :]
    freed = json.dumps({"answer": "kept", "is_kept": False, "room_bytes": 5}).encode()

    def answer(request):
        if request["ask"] == "find":
            return kept(sealed(content, len(have) * CHUNK), sealed(words(have), 8 * len(have)))
        return freed, []

    with Impostor(store_daemons, answer):
        loader = load()
        found = loader.config.store
        kept_bytes = DATA_BYTES - 2 * CHUNK
        assert (found.kept_bytes, found.loaded_bytes, found.is_kept) == (kept_bytes, 2 * CHUNK, False)
        assert "5" in loader.config.fallbacks[0].reason
        assert deliver(loader) == plain


def raw_request(path, request):
    """Send the daemon something; return its answer, nothing if it hangs up."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(support.DEADLINE_S)
        connection.connect(str(path))
        connection.send(request if isinstance(request, bytes) else json.dumps(request).encode())
        return connection.recv(1 << 16)


@pytest.mark.parametrize(
    "request_",
    [
        b"hello",
        b"[]",
        {"ask": "status"},
        {"version": 1},
        {"version": 1, "ask": "sing"},
        {"version": 2, "ask": "status"},
        {"version": 1, "ask": "find"},
        {"version": 1, "ask": "find", "dataset": {"version": "", "place": "", "state": "", "path": ""}},
        {
            "version": 1,
            "ask": "keep",
            "dataset": {"version": "", "place": "", "state": "", "path": ""},
            "node": 0,
            "nodes": 1,
        },
        {"version": 1, "ask": "make_room", "bytes": -1},
    ],
    ids=str,
)
def test_a_request_that_is_wrong_is_refused(store_daemons, request_):  # noqa: F811
    store_daemons.start()
    (path,) = store_daemons.runtime(0).glob("*.sock")
    assert json.loads(raw_request(path, request_))["answer"] == "refused"
    assert store_daemons.status()["shares"] == []


def test_a_client_of_another_version_can_end_a_daemon(store_daemons):  # noqa: F811
    store_daemons.start()
    (path,) = store_daemons.runtime(0).glob("*.sock")
    assert json.loads(raw_request(path, {"version": 9, "ask": "stop"})) == {"answer": "stopping", "users": 0}
    store_daemons.wait_for_end()
    assert list(store_daemons.runtime(0).iterdir()) == []


# --- other users ---


def test_a_directory_that_others_can_reach_is_not_used(store_daemons, load):  # noqa: F811
    store_daemons.runtime(0).chmod(0o755)
    assert "0755" in check_falls_back(load)
    with pytest.raises(forebay.OptionError):
        store.status()
    with pytest.raises(forebay.StorageError, match="0755"):
        store.start(None, 10)


@needs_root
def test_a_directory_of_another_user_is_not_used(store_daemons, load):  # noqa: F811
    runtime = store_daemons.runtime(0)
    os.chown(runtime, NOBODY, NOBODY)
    assert str(NOBODY) in check_falls_back(load)
    os.chown(runtime, 0, 0)


ASKS = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
    connection.connect(sys.argv[1])
    try:
        connection.send(b'{"version": 1, "ask": "stop"}')
        print(connection.recv(1000))
    except OSError:
        print(b"")
"""


@needs_root
def test_another_user_gets_no_answer(store_daemons):  # noqa: F811
    store_daemons.start()
    (path,) = store_daemons.runtime(0).glob("*.sock")
    # As if the directory had been opened to others since.
    above = path.parent.parent
    for opened in (above, path.parent, path):
        opened.chmod(0o777)
    command = [sys.executable, "-c", ASKS, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "b''\n"
    for closed in (above, path.parent):
        closed.chmod(0o700)
    assert store_daemons.status()["shares"] == []


LISTENS = """
import os, socket, sys
os.setgid(65534), os.setuid(65534)
listener = socket.socket(fileno=int(sys.argv[1]))
listener.listen()
print("listens", flush=True)
sys.stdin.read()
"""


@needs_root
def test_a_daemon_of_another_user_is_not_asked(store_daemons, load):  # noqa: F811
    path = socket_of(store_daemons)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        descriptor = listener.fileno()
        command = [sys.executable, "-c", LISTENS, str(descriptor)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        with subprocess.Popen(command, pass_fds=[descriptor], text=True, **pipes) as process:
            assert process.stdout.readline() == "listens\n"
            assert str(NOBODY) in check_falls_back(load)
            process.stdin.close()
    path.unlink()


# --- jobs of several nodes ---


@pytest.mark.parametrize("victim", [0, 1])
def test_a_daemon_that_dies_under_a_job_of_two_nodes_costs_nothing(pool, store_daemons, tier_data, victim):  # noqa: F811
    nodes = [0, 0, 1]
    store_daemons.start(0, 1)

    def job(level):
        options = {"batch_size": 4, "order": "shuffle", "node_memory": MEMORY, **level}
        path = str(tier_data.formats["raw"])
        found = pool.outcomes(
            pool.begin(
                3,
                tiers.deliver,
                nodes=nodes,
                over="tcp",
                path=path,
                opening=opening("raw"),
                options=options,
                environment=lambda rank: store_daemons.variables(nodes[rank]),
            )
        )
        assert not any(isinstance(one, Raised) for one in found), found
        return found

    plain = job(PLAIN)
    job(STORE)
    store_daemons.kill(victim)
    found = job(STORE)
    assert [one["steps"] for one in found] == [one["steps"] for one in plain]
    assert [one["store"]["is_kept"] for one in found] == [node != victim for node in nodes]
    # A node may hold none of the few chunks.
    assert all(
        one["store"]["loaded_bytes"] == 0 for one, node in zip(found, nodes, strict=True) if node != victim
    )
    leaders = [found[0]["store"], found[2]["store"]]
    assert sum(one["loaded_bytes"] + one["kept_bytes"] for one in leaders) == DATA_BYTES


def test_a_killed_rank_leaves_the_share_to_the_next_job(pool, store_daemons, small_lmdb):  # noqa: F811
    tiering.settle([small_lmdb])
    store_daemons.start(0, 1)
    nodes = (0, 1, 1)
    options = {"batch_size": 2, "order": "shuffle", "node_memory": "64MiB", "store": "auto"}
    environment = {"environment": lambda rank: store_daemons.variables(nodes[rank])}
    ranks = pool.begin(3, work.walk, nodes=nodes, path=str(small_lmdb), options=options, **environment)
    for rank in ranks:
        assert rank.hear() == "made"
        assert rank.hear() == "walking"
    ranks[0].kill()
    outcomes = pool.outcomes(ranks, support.TOLD_WITHIN_S)
    assert outcomes[0] == Killed(-signal.SIGKILL)
    assert all("rank 0 " in one["message"] for one in outcomes[1:])
    for node in (0, 1):
        (share,) = store_daemons.shares(node)
        assert share["nodes"] == 2
