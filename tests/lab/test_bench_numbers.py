"""Numbers of forebay bench: parts that add up, medians, digests of what was handed out."""

from __future__ import annotations

import numpy as np
import pytest

from forebay_lab.bench import timing, verify
from support.bench import PARTS


def rank_of_stamps(number, begin, ready, finished, got, arrived, together, epochs=(0,)):
    arrays = {"got": got, "arrived": arrived, "together": together, "epochs": epochs}
    arrays |= {"marks": [begin, ready, finished], "sizes": [1 << 20] * len(got), "samples": [4] * len(got)}
    usage = dict.fromkeys(
        ("cpu_seconds", "minor_faults", "major_faults", "voluntary_switches", "involuntary_switches"), 1
    )
    measured = {"rank": number, "node": 0, "usage": usage, "reads": 2, "read_bytes": 3}
    measured |= {"storage_bytes": 4, "mmap_bytes": 0, "explain": "", "reader": {"read_seconds": 2.0}}
    return timing.Rank(
        measured,
        {key: np.array(value) * 10**9 if key in STAMPS else np.array(value) for key, value in arrays.items()},
    )


STAMPS = ("got", "arrived", "together", "marks")


def test_stamps_become_the_parts_that_docs_metrics_defines():
    # Seconds. Start-up until 10; steps of compute 2; rank 1 waits 3 s for its second batch, rank 0
    # one.
    first = rank_of_stamps(0, 0, 10, 22, [8, 14, 19], [12, 16, 21], [13, 18, 22])
    second = rank_of_stamps(1, 0, 10, 22, [9, 15, 19], [12, 17, 21], [13, 18, 22])
    found = timing.repetition([first, second], time_scale=1.0)
    one, two = found["ranks"]
    assert [one[key] for key in PARTS] == [1 + 1, 2 + 2 + 2, 1 + 1 + 1, 0 + 1 + 0]
    assert [two[key] for key in PARTS] == [2 + 1, 2 + 2 + 2, 1 + 1 + 1, 0]
    for rank in (one, two):
        assert sum(rank[key] for key in PARTS) == rank["wall_seconds"] == 12
    assert (one["startup_seconds"], found["startup_seconds"], found["total_seconds"]) == (8, 9, 22)
    # DLIO: compute of steps 1 and 2 over the epoch without the first step's wait and compute.
    assert found["accelerator_utilisation"] == pytest.approx(4 / 10)
    assert found["samples_per_second"] == pytest.approx(24 / 22)
    assert found["rate_mib_s"] == pytest.approx(6 / 22)
    assert (found["reads"], found["minor_faults"], found["exposed_seconds"]) == (4, 2, 2.5)


def test_a_time_scale_takes_times_back_to_the_model_and_leaves_counts():
    ranks = [rank_of_stamps(0, 0, 10, 22, [8, 14, 19], [12, 16, 21], [13, 18, 22])]
    plain, slow = timing.repetition(ranks, 1.0), timing.repetition(ranks, 4.0)
    assert slow["total_seconds"] == plain["total_seconds"] / 4
    assert slow["rate_mib_s"] == plain["rate_mib_s"] * 4
    assert slow["readers"][0]["read_seconds"] == 0.5
    for key in ("accelerator_utilisation", "reads", "cpu_seconds", "requested_bytes"):
        assert slow[key] == plain[key]


def test_the_utilisation_of_two_epochs_leaves_out_the_first_step_of_each():
    rank = rank_of_stamps(0, 0, 0, 20, [0, 3, 10, 14], [2, 5, 12, 16], [2, 5, 12, 16], epochs=(0, 2))
    # Epoch 0: 2 / (5 - 0 - 2); epoch 1: 2 / (16 - 5 - (10 - 5) - 2).
    found = timing.repetition([rank], 1.0)["accelerator_utilisation"]
    assert found == pytest.approx((2 / 3 + 2 / 4) / 2)


def test_medians_and_spreads_are_of_the_repetitions():
    repetitions = [
        timing.repetition([rank_of_stamps(0, 0, 10, end, [8, 14], [12, 16], [13, end])], 1.0)
        for end in (20, 30, 22)
    ]
    middle = timing.median(repetitions)
    assert middle["total_seconds"] == 22
    assert timing.spread(repetitions, middle)["total_seconds"] == pytest.approx(10 / 22)


def digests_of(*epochs):
    kept = verify.Digests()
    for epoch in epochs:
        for ids in epoch:
            kept.add_step(ids, [b"%d" % one for one in ids])
        kept.end_epoch()
    return kept.arrays()


def test_epochs_in_another_order_are_the_same_multiset_and_other_steps():
    one = verify.join([digests_of([[0, 1], [4, 5]]), digests_of([[2, 3], [0, 1]])], 6)
    two = verify.join([digests_of([[5, 2], [4, 0]]), digests_of([[3, 1], [2, 3]])], 6)
    assert one.digest_epoch == two.digest_epoch is not None
    assert one.digest_steps != two.digest_steps
    (steps, epoch) = verify.compare({"a": ("x", one), "b": ("x", two)})
    assert (steps["what"], steps["equal"], steps["difference"]) == (
        "steps",
        False,
        "b differs from a at step 0",
    )
    assert (epoch["what"], epoch["equal"]) == ("epoch", True)


def test_a_record_that_changed_between_two_hand_outs_is_a_fault():
    kept = verify.Digests()
    kept.add_step([0, 0], [b"a", b"b"])
    kept.end_epoch()
    assert "sample 0 was handed out twice, with different bytes" in verify.join([kept.arrays()], 1).fault


def test_an_epoch_that_lacks_a_sample_has_no_digest():
    found = verify.join([digests_of([[0, 1], [2, 2]])], 4)
    assert (found.digest_epoch, found.fault) == (None, None)


def test_a_digest_is_of_id_and_bytes_whatever_holds_them():
    of_bytes = verify.sample_digest(3, b"abcd")
    assert verify.sample_digest(3, np.frombuffer(b"abcd", np.uint8)) == of_bytes
    assert verify.sample_digest(3, np.frombuffer(b"aXbXcXdX", np.uint8)[::2]) == of_bytes
    assert verify.sample_digest(3, memoryview(b"abcd")) == of_bytes
    assert verify.sample_digest(4, b"abcd") != of_bytes
    assert verify.sample_digest(3, b"") != verify.sample_digest(4, b"")


def test_epochs_split_the_time_and_the_counters():
    rank = rank_of_stamps(0, 0, 4, 20, [2, 6, 10, 14], [5, 7, 12, 16], [5, 8, 12, 16], epochs=(0, 2))
    rank.measured["counters"] = [{"reads": 7, "read_bytes": 70}, {"reads": 9, "read_bytes": 75}]
    first, second = timing.repetition([rank], 2.0)["by_epoch"]
    assert first == {
        "epoch": 0, "seconds": 4, "exposed_seconds": 0.5, "samples": 8, "requested_bytes": 2 << 20,
        "levels": None, "pfs": {"reads": 7, "read_bytes": 70},
    }  # fmt: skip
    assert (second["seconds"], second["exposed_seconds"]) == (4, (2 + 2) / 2)
    assert second["pfs"] == {"reads": 2, "read_bytes": 5}
    assert timing.repetition([rank_of_stamps(0, 0, 1, 3, [1], [2], [3])], 1.0)["by_epoch"][0]["pfs"] is None


def test_bytes_of_each_level_are_those_of_all_ranks_in_each_epoch():
    stamps = (0, 4, 20, [2, 6, 10, 14], [5, 7, 12, 16], [5, 8, 12, 16])
    ranks = [rank_of_stamps(number, *stamps, epochs=(0, 2)) for number in range(2)]
    # A tier of another node may have another path, and a node may have one tier less.
    ranks[0].measured["levels"] = [{"source": 5}, {"source": 4}]
    ranks[1].measured["levels"] = [{"source": 3, "/node1": 1}, None]
    first, second = timing.repetition(ranks, 1.0)["by_epoch"]
    assert first["levels"] == {"source": 8, "/node1": 1}
    assert second["levels"] is None
