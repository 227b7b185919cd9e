"""The TCP channel of a job: ranks exchange payloads, name missing ranks, refuse outsiders."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import struct
import sys
import threading
import time
import types

import pytest

import support
from forebay import OptionError, PeerLostError, RendezvousError
from forebay._job import channel as channels
from forebay._job import connection, rank0, tcp
from forebay._job.rank_info import RankInfo
from forebay._native import HandshakeKey

_jobs = itertools.count()


@pytest.fixture(autouse=True)
def on_loopback(monkeypatch):
    monkeypatch.setenv(rank0.ADDRESS_VARIABLE, "127.0.0.1")


@pytest.fixture
def warned(monkeypatch):
    """The texts of warnings, of all threads."""
    texts = []
    for module in (tcp, channels):
        monkeypatch.setattr(module, "warn", texts.append)
    return texts


def a_rank(rank, size, job, **more):
    """A rank that is alone on its node."""
    return RankInfo(
        rank=rank, size=size, local_ranks=(rank,), node=f"n{rank}", job=job, source="test", **more
    )


def on_ranks(size, work, *, absent=(), job=None, deadline_s=60, **more):
    """Run work on the channels of all ranks, each in a thread; return results by rank."""
    job = job or f"job-{os.getpid()}-{next(_jobs)}"
    found = {}

    def run(rank):
        try:
            opened = tcp.open_channel(a_rank(rank, size, job, **more), "train", deadline_s)
            if opened is not None:
                with contextlib.closing(opened):
                    found[rank] = work(opened)
        except BaseException as error:
            found[rank] = error

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(support.DEADLINE_S)
        assert not thread.is_alive()
    return [found.get(rank) for rank in range(size)]


def test_all_ranks_get_all_payloads_in_the_order_of_the_ranks():
    def exchange(channel):
        found = []
        for turn, length in enumerate((1, 40, 200_000, 0)):
            found.append(channel.gather(bytes([channel.rank + turn]) * length, "testing", 60))
        return found

    expected = [
        [bytes([rank + turn]) * length for rank in range(6)]
        for turn, length in enumerate((1, 40, 200_000, 0))
    ]
    assert on_ranks(6, exchange) == [expected] * 6


def test_a_job_opens_one_channel_after_the_other():
    job = f"again-{os.getpid()}"
    for turn in range(3):

        def exchange(channel, turn=turn):
            return channel.gather(bytes([channel.rank, turn]), "testing", 60)

        assert on_ranks(3, exchange, job=job) == [[bytes([rank, turn]) for rank in range(3)]] * 3


def test_ranks_that_disagree_raise_the_same_error():
    def compare(channel):
        channels.compare(channel, {"seed": 1}, 60)
        channels.compare(channel, {"seed": 1, "batch_size": 8 if channel.rank < 2 else 9}, 60)

    for error in on_ranks(3, compare):
        assert isinstance(error, RendezvousError)
        assert str(error).startswith("the ranks disagree on batch_size: 8 on rank 0, 9 on rank 2\n")


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize(
    ("error", "kind"),
    [(ValueError, RendezvousError), (RendezvousError, RendezvousError), (PeerLostError, PeerLostError)],
)
def test_a_rank_that_gives_up_ends_the_exchange_of_all(victim, error, kind):
    def exchange(channel):
        channel.gather(b"a", "testing", 60)
        with channels.errors_told(channel):
            if channel.rank == victim:
                raise error("on purpose")
        channel.gather(b"b", "testing", 60)

    for rank, raised in enumerate(on_ranks(4, exchange)):
        assert type(raised) is (error if rank == victim else kind)
        assert rank == victim or f"rank {victim} gave up: {error.__name__}: on purpose" in str(raised)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_rank_whose_connection_ends_is_named_by_all(victim):
    def exchange(channel):
        if channel.rank == victim:
            return None
        return channel.gather(b"b", "testing", 60)

    for rank, error in enumerate(on_ranks(4, exchange)):
        if rank != victim:
            assert isinstance(error, PeerLostError)
            assert f"rank {victim} has ended" in str(error)


@pytest.mark.parametrize("absent", [0, 2])
def test_a_rank_that_does_not_come_to_an_exchange_is_named_at_the_deadline(absent):
    def exchange(channel):
        if channel.rank == absent:
            return ended.wait(support.DEADLINE_S)
        try:
            return channel.gather(b"b", "testing", 2)
        finally:
            left.append(channel.rank)
            if len(left) == 3:
                ended.set()

    for _ in range(support.TRIES):
        ended, left = threading.Event(), []
        found = on_ranks(4, exchange)
        errors = [str(error) for rank, error in enumerate(found) if rank != absent]
        assert all(isinstance(found[rank], RendezvousError) for rank in range(4) if rank != absent)
        # On a busy machine another one may be late as well, and the first to give up says so to
        # all.
        if all(f"missing: rank {absent}" in error for error in errors if "missing" in error):
            assert any("missing" in error for error in errors)
            return
    raise AssertionError(errors)


def test_a_rank_that_is_late_is_warned_of_and_waited_for(warned, monkeypatch):
    monkeypatch.setattr(channels, "WARN_AFTER_S", 0.0)

    def exchange(channel):
        while channel.rank == 2 and len([text for text in warned if "has waited" in text]) < 3:
            time.sleep(0.01)
        return channel.gather(bytes([channel.rank]), "testing", 60)

    assert on_ranks(4, exchange) == [[b"\0", b"\1", b"\2", b"\3"]] * 4


@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_does_not_join_costs_the_channel_and_no_error(warned, monkeypatch, absent):
    monkeypatch.setattr(tcp, "JOIN_WITHIN_S", 0.5)
    job = f"absent-{os.getpid()}-{absent}"
    assert on_ranks(3, lambda channel: channel, absent=[absent], job=job) == [None] * 3
    assert len(warned) == 2
    # On a busy machine another one may be late as well.
    assert all(str(absent) in text.split(" for rank")[1] for text in warned)
    # Later loaders of these ranks do not try again, and say nothing.
    assert on_ranks(3, lambda channel: channel, absent=[absent], job=job) == [None] * 3
    assert len(warned) == 2


def test_ranks_that_no_address_leads_to_the_first_have_no_channel(warned, monkeypatch):
    monkeypatch.delenv(rank0.ADDRESS_VARIABLE)
    assert on_ranks(2, lambda channel: channel) == [None] * 2
    monkeypatch.setenv(rank0.ADDRESS_VARIABLE, "none")
    assert on_ranks(2, lambda channel: channel, address="127.0.0.1") == [None] * 2
    assert warned == []


def test_a_job_larger_than_the_open_files_of_rank_0_has_no_channel(warned, monkeypatch):
    monkeypatch.setattr(tcp.resource, "getrlimit", lambda _: (tcp._SPARE_FILES, tcp._SPARE_FILES))
    assert on_ranks(3, lambda channel: channel) == [None] * 3
    assert len(warned) == 3
    assert [text for text in warned if "open files of rank 0" not in text] == []


def test_a_port_that_another_program_has_is_passed_over():
    job = f"taken-{os.getpid()}"
    first = rank0.derived_ports(job, "train")[0]
    # One that takes connections and says nothing.
    with socket.create_server(("", first)):
        found = on_ranks(2, lambda channel: channel.gather(b"x", "testing", 60), job=job)
    assert found == [[b"x", b"x"]] * 2


def test_strangers_learn_nothing_and_hold_nobody_up(monkeypatch):
    monkeypatch.setattr(tcp, "_MAX_PENDING", 2)
    job = f"strangers-{os.getpid()}"
    (port, *_) = rank0.derived_ports(job, "train")
    hello = struct.pack("<16sII32s", connection._MAGIC, 1, 2, bytes(32))
    heard = {}

    def call(name, *messages):
        end = time.monotonic() + support.DEADLINE_S
        while time.monotonic() < end:
            try:
                stranger = socket.create_connection(("127.0.0.1", port), timeout=support.DEADLINE_S)
                break
            except OSError:
                time.sleep(0.01)
        for message in messages:
            stranger.sendall(message)
        heard[name] = stranger
        return stranger

    def answer(stranger):
        answered = b""
        try:
            while more := stranger.recv(100):
                answered += more
        except ConnectionError:
            pass
        return answered

    found = []

    def rank_0():
        with contextlib.closing(tcp.open_channel(a_rank(0, 2, job), "train", 60)) as channel:
            found.append(channel.gather(b"0", "testing", 60))

    one = threading.Thread(target=rank_0)
    one.start()
    silent = [call(f"silent{number}") for number in range(6)]
    assert answer(call("garbage", b"GET / HTTP/1.1\r\n" * 8)) == b""
    assert len(answer(call("guess", hello, bytes(32)))) == connection.NONCE_BYTES
    for wrong in ({"job": "other"}, {"loader": "other"}, {"secret": b"x"}):
        key = HandshakeKey(**{"job": job, "loader": "train", "secret": b"", **wrong})
        with pytest.raises(ConnectionError):
            connection.connect("127.0.0.1", port, key, 1, 2, 60)
    other = tcp.open_channel(a_rank(1, 2, job), "train", 60)
    assert other.gather(b"1", "testing", 60) == [b"0", b"1"]
    one.join(support.DEADLINE_S)
    assert found == [[b"0", b"1"]]
    other.close()
    for stranger in silent:
        assert answer(stranger) == b""
    for stranger in heard.values():
        stranger.close()


def test_two_processes_of_one_rank_are_an_error_of_the_second():
    job = f"twice-{os.getpid()}"
    ports, key = rank0.derived_ports(job, "train"), HandshakeKey(job, "train", b"")
    found = []

    def rank_0():
        try:
            tcp.open_channel(a_rank(0, 3, job), "train", 60)
        except PeerLostError as error:
            found.append(str(error))

    first = threading.Thread(target=rank_0)
    first.start()
    ranks = []
    while len(ranks) < 2:
        for port in ports:
            with contextlib.suppress(OSError):
                ranks.append(connection.connect("127.0.0.1", port, key, 1, 3, 60))
                ranks[-1].send(connection.Kind.JOIN)
                break
    frames = []
    while not frames:
        frames = [frame for rank in ranks for frame in rank.receive()]
    ((kind, text),) = frames
    assert kind == connection.Kind.FAILED
    assert b"rank 1" in text
    for rank in ranks:
        rank.close()
    first.join(support.DEADLINE_S)
    assert len(found) == 1


# --- through a store of torch ---


class Store:
    """As much of a store as is used."""

    def __init__(self):
        self.values = {}

    def set(self, key, value):
        self.values[key] = value.encode()

    def check(self, keys):
        return all(key in self.values for key in keys)

    def get(self, key):
        return self.values[key]


def fake_torch(monkeypatch, store, place, initialized=True):
    distributed = types.SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: initialized,
        get_rank=lambda: place.rank,
        get_world_size=lambda: place.size,
        distributed_c10d=types.SimpleNamespace(_get_default_store=lambda: store),
        TCPStore=lambda *arguments: store,
    )
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(distributed=distributed))


def test_a_store_of_torch_carries_address_and_secret(monkeypatch):
    monkeypatch.delenv(rank0.ADDRESS_VARIABLE)
    store, place = Store(), threading.local()
    fake_torch(monkeypatch, store, place)
    really = tcp.find_rank0

    def find_rank0(rank_info, loader, join_by):
        place.rank, place.size = rank_info.rank, rank_info.size
        return really(rank_info, loader, join_by)

    monkeypatch.setattr(tcp, "find_rank0", find_rank0)
    # Threads of one process would count each other's channels.
    monkeypatch.setattr(rank0, "_number_of", lambda name: 0)
    found = on_ranks(3, lambda channel: channel.gather(b"x", "testing", 60), job="torch", address="")
    assert found == [[b"x"] * 3] * 3
    (published,) = map(json.loads, store.values.values())
    assert len(bytes.fromhex(published["secret"])) == 32


# --- where rank 0 is ---


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("node0:29500", ("node0", (29500,))),
        ("node0", ("node0", ())),
        ("10.0.0.1:1", ("10.0.0.1", (1,))),
        ("[fe80::1]:22", ("fe80::1", (22,))),
        ("fe80::1", ("fe80::1", ())),
    ],
)
def test_an_address_is_a_host_and_may_have_a_port(address, found):
    assert rank0.split_address(address) == found


@pytest.mark.parametrize("address", [":5", "host:x", "host:0", "host:65536", "[]:5"])
def test_an_address_that_makes_no_sense_is_an_error(address):
    with pytest.raises(OptionError):
        rank0.split_address(address)


def test_ports_follow_from_the_names_of_job_and_loader():
    ports = rank0.derived_ports("job", "train")
    assert ports == rank0.derived_ports("job", "train")
    assert ports != rank0.derived_ports("job", "test")
    assert rank0.derived_ports("a", "b c") != rank0.derived_ports("a b", "c")
    assert all(20_480 <= port < 28_672 for port in ports)


def test_a_job_without_a_name_of_its_own_cannot_meet_across_nodes():
    with pytest.raises(OptionError):
        tcp.open_channel(a_rank(0, 2, "parent-12-34"), "train", 60)
