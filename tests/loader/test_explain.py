"""``Loader.explain()`` renders ``Loader.config``: from made-up facts to text."""

from __future__ import annotations

from dataclasses import replace

import pytest

import forebay
import forebay_lab
from forebay._explain import lines
from forebay.config import (
    Config,
    Data,
    EpochEnd,
    EpochForecast,
    Fallback,
    Given,
    GroupSize,
    Index,
    Locality,
    Memory,
    NoCopies,
    Now,
    Order,
    PerSample,
    Reading,
    ShuffleQuality,
    StoreFacts,
    StoreProbe,
    Streaming,
    TierLevel,
    Tiers,
)

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

QUALITY = ShuffleQuality(
    order_entropy=0.7339,
    same_group_pairs=0.0123,
    full_shuffle_same_group_pairs=0.0037,
    groups=2500,
    proven_epochs=40,
    epochs=None,
    within_bound=None,
    suggested_group=None,
)
NO_BOUND = replace(QUALITY, groups=None, proven_epochs=None)
PLAIN = Config(
    strategy=forebay.Strategy(),
    given={"batch_size": Given(value="64", origin="batch_size=")},
    data=Data(
        samples=100_000,
        record_bytes=8 * GIB,
        file_bytes=9 * GIB,
        unit_samples=1,
        fields={"data": ("uint8", None)},
        file_system="lustre",
        is_local=False,
    ),
    order=Order(
        kind="group",
        steps=391,
        global_batch=256,
        last_batch="partial",
        ends=(
            EpochEnd(last_batch="partial", steps=391, delivered=100_000, repeated=0, left_out=0),
            EpochEnd(last_batch="fill", steps=391, delivered=100_096, repeated=96, left_out=0),
            EpochEnd(last_batch="drop", steps=390, delivered=99_840, repeated=0, left_out=160),
        ),
        expected_epochs=None,
        lanes=8,
        allowed_ranks=(1, 2, 4, 8),
        group_samples=40,
        group_window=16,
        mixture=None,
        local=None,
        streaming=None,
        shuffle_quality=QUALITY,
    ),
    index=Index(source="sidecar"),
    reading=Reading(
        locate="index",
        io_mode="planned",
        roots=False,
        access="pread",
        direct=False,
        drops_behind=False,
        mapping="none",
        read_ahead="announced",
        readers=2,
        max_read_bytes=8 * MIB,
        gap_bytes=512 * KIB,
        first_segment_steps=1,
        segment_steps=2,
        checksums=False,
        decode_amplification=1.0,
    ),
    memory=Memory(
        requested_bytes=2560 * MIB,
        is_default=True,
        bound="free",
        bound_bytes=20 * GIB,
        is_half_of_address_space=False,
        held_bytes=0,
        retained_bytes=0,
        node_bytes=32 * GIB,
        budget_bytes=2560 * MIB,
        minimum_bytes=300 * MIB,
        on_loan=False,
        region_bytes=700 * MIB,
        staging_bytes=500 * MIB,
        kept_unit_bytes=0,
        batch_buffers=4,
        batch_buffer_bytes=5 * MIB,
    ),
    tiers=None,
    store=None,
    linked_nodes=None,
    per_sample=None,
    fallbacks=(),
    now=Now(
        epochs=None,
        touched_bytes=70 * MIB,
        huge_page_bytes=None,
        stagger_groups=None,
        mapped_from_epoch=None,
        all_batch_buffers_kept=False,
    ),
)
SEQUENTIAL = replace(
    PLAIN.order,
    kind="sequential",
    group_samples=None,
    group_window=None,
    mixture=None,
    shuffle_quality=replace(
        NO_BOUND, order_entropy=None, same_group_pairs=None, full_shuffle_same_group_pairs=None
    ),
)
LOCAL = Locality(pool_steps=1, nodes=4, local_share=0.957, held_share=0.25, units=1152, unit_bytes=8 * MIB)
STREAMING = Streaming(
    nodes=4,
    resident_share=0.5,
    own_resident_share=0.125,
    resident_bytes=1152 * MIB,
    loaded_bytes=1150 * MIB,
    streamed_bytes=4608 * MIB,
    streamed_bytes_without_windows=4400 * MIB,
    units=1152,
    unit_bytes=8 * MIB,
    streamed_units=576,
    window_units=20,
    window_bytes=160 * MIB,
    staging_bytes=180 * MIB,
    entropy_bound=0.8,
    order_entropy=0.8034,
    cross_entropy=1.41,
)
STORE = StoreFacts(
    nodes=4,
    chunks=9216,
    held_chunks=9216,
    own_chunks=2304,
    share_bytes=2304 * MIB,
    loaded_bytes=2304 * MIB,
    kept_bytes=0,
    is_kept=False,
    transport="tcp",
    ucx_transports=(),
    no_ucx="this node has no RDMA device",
    probe=StoreProbe(rate_mib_s=2345.6, round_trip_us=41.2, slowest_rate_mib_s=1104.9),
    requests_per_node=4,
    request_bytes=64 * MIB,
)
FAILS = replace(QUALITY, epochs=90, within_bound=False)

TIERS = Tiers(
    levels=(
        TierLevel(path="/dev/shm", bytes=GIB, slots=1024, held_bytes=0, is_memory=True),
        TierLevel(path="/scratch", bytes=4 * GIB, slots=4096, held_bytes=300 * MIB, is_memory=False),
    ),
    chunks=9216,
    nodes=1,
    copies=True,
    no_copies=None,
    buffer_bytes=16 * MIB,
    forecast=(
        EpochForecast(source=8.7 * GIB, levels=(0.0, 300.0 * MIB)),
        EpochForecast(source=4.0 * GIB, levels=(1.0 * GIB, 4.0 * GIB)),
        EpochForecast(source=4.0 * GIB, levels=(1.0 * GIB, 4.0 * GIB)),
    ),
)

CASES = {
    "default": PLAIN,
    "tiers": replace(PLAIN, tiers=TIERS),
    "tiers-without-copies": replace(
        PLAIN,
        tiers=replace(
            TIERS,
            copies=False,
            no_copies=NoCopies(reason="one_epoch", pays_from=None),
        ),
        order=replace(
            PLAIN.order, expected_epochs=1, shuffle_quality=replace(QUALITY, epochs=1, within_bound=True)
        ),
    ),
    "tiers-that-cost-more": replace(
        PLAIN,
        tiers=replace(
            TIERS,
            nodes=4,
            levels=(replace(TIERS.levels[1], slots=9216, held_bytes=0),),
            copies=False,
            no_copies=NoCopies(reason="cost_more", pays_from=5),
            forecast=(EpochForecast(source=9.0 * GIB, levels=(0.0,)),) * 3,
        ),
        order=replace(SEQUENTIAL, kind="shuffle"),
    ),
    "tiers-for-a-source-in-memory": replace(
        PLAIN,
        tiers=replace(TIERS, copies=False, no_copies=NoCopies(reason="source_in_memory", pays_from=None)),
    ),
    "local-shuffle": replace(PLAIN, order=replace(SEQUENTIAL, kind="local-shuffle", local=LOCAL)),
    "local-shuffle-in-pools": replace(
        PLAIN, order=replace(SEQUENTIAL, kind="local-shuffle", local=replace(LOCAL, pool_steps=8))
    ),
    "local-shuffle-on-one-node": replace(
        PLAIN,
        order=replace(
            SEQUENTIAL,
            kind="local-shuffle",
            local=Locality(pool_steps=1, nodes=1, local_share=1.0, held_share=1.0),
        ),
    ),
    "opportunistic": replace(
        PLAIN, order=replace(SEQUENTIAL, kind="opportunistic", streaming=STREAMING), linked_nodes=4
    ),
    "opportunistic-beside-a-store": replace(
        PLAIN,
        order=replace(
            SEQUENTIAL,
            kind="opportunistic",
            streaming=replace(STREAMING, streamed_bytes_without_windows=4608 * MIB, entropy_bound=None),
        ),
    ),
    "opportunistic-without-a-stream": replace(
        PLAIN,
        order=replace(
            SEQUENTIAL,
            kind="opportunistic",
            streaming=replace(
                STREAMING,
                nodes=1,
                resident_share=1.0,
                own_resident_share=1.0,
                streamed_units=0,
                entropy_bound=None,
            ),
        ),
    ),
    "store": replace(PLAIN, store=STORE, linked_nodes=4),
    "store-that-was-kept": replace(
        PLAIN,
        store=replace(STORE, loaded_bytes=256 * MIB, kept_bytes=2048 * MIB, is_kept=True),
        linked_nodes=4,
    ),
    "store-with-rdma": replace(
        PLAIN,
        store=replace(STORE, transport="ucx", ucx_transports=("rc_mlx5", "self"), no_ucx=None),
        linked_nodes=4,
    ),
    "per-sample": replace(
        PLAIN,
        per_sample=PerSample(
            functions=("transform", "batch_transform"),
            workers=8,
            worker_kind="thread",
            threads=8,
            prefetch=2,
            collate="stack",
        ),
    ),
    "per-sample-in-processes": replace(
        PLAIN,
        per_sample=PerSample(
            functions=("transform", "batch_transform"),
            workers=8,
            worker_kind="process",
            threads=16,
            prefetch=2,
            collate="image=stack, *=list",
        ),
    ),
    "batch-in-threads": replace(
        PLAIN,
        per_sample=PerSample(
            functions=("batch_transform",),
            workers=1,
            worker_kind="thread",
            threads=1,
            prefetch=0,
            collate="stack",
        ),
    ),
    "store-of-a-part": replace(
        PLAIN, store=replace(STORE, held_chunks=4608, own_chunks=1152), linked_nodes=4
    ),
    "mapped": replace(
        PLAIN,
        data=replace(PLAIN.data, file_system="ext4", is_local=True),
        index=Index(source="build"),
        reading=replace(PLAIN.reading, io_mode="mapped", access="mmap", mapping="resident", readers=0),
        memory=replace(PLAIN.memory, staging_bytes=0),
        now=replace(PLAIN.now, huge_page_bytes=20 * MIB),
    ),
    "given-by-the-environment": replace(
        PLAIN,
        given={
            "expected_epochs": Given(value="3", origin="FOREBAY_EXPECTED_EPOCHS"),
            "node_memory": Given(value="2684354560", origin="forebay.toml: node_memory"),
        },
        order=replace(
            PLAIN.order, expected_epochs=3, shuffle_quality=replace(QUALITY, epochs=3, within_bound=True)
        ),
    ),
    "too-many-epochs": replace(
        PLAIN,
        order=replace(
            PLAIN.order, shuffle_quality=replace(FAILS, suggested_group=GroupSize(samples=91, window=7))
        ),
    ),
    "too-many-epochs-in-a-small-data-set": replace(PLAIN, order=replace(PLAIN.order, shuffle_quality=FAILS)),
    "direct": replace(
        PLAIN,
        data=replace(PLAIN.data, file_bytes=40 * GIB),
        reading=replace(PLAIN.reading, access="io_uring", direct=True, mapping="cold"),
    ),
    "drops-behind": replace(
        PLAIN,
        data=replace(PLAIN.data, file_bytes=40 * GIB),
        reading=replace(PLAIN.reading, drops_behind=True),
    ),
    "cursor": replace(
        PLAIN,
        strategy=forebay_lab.Strategy(locate="cursor", access="mmap"),
        order=SEQUENTIAL,
        reading=replace(PLAIN.reading, locate="cursor", io_mode="cursor_walk", access="mmap", readers=0),
    ),
    "handoff-by-roots": replace(
        PLAIN,
        strategy=forebay_lab.Strategy(locate="handoff", access="mmap", readers="per_node"),
        order=SEQUENTIAL,
        reading=replace(
            PLAIN.reading, locate="handoff", io_mode="cursor_walk", roots=True, access="mmap", readers=1
        ),
        linked_nodes=4,
    ),
    "scan": replace(
        PLAIN,
        order=SEQUENTIAL,
        index=Index(source="scan", scanning_node="each"),
        reading=replace(PLAIN.reading, roots=True, readers=1),
    ),
    "recipe-and-turns": replace(
        PLAIN,
        strategy=forebay_lab.Strategy(
            locate="provenance",
            access="pread",
            readers="per_node",
            direct=True,
            coalesce=4,
            stagger="auto",
            prefetch_windows=2,
        ),
        order=SEQUENTIAL,
        index=Index(source="recipe", verified=False, recipe_bytes=57, path="/cache/x.recipe"),
        reading=replace(
            PLAIN.reading, locate="provenance", roots=True, direct=True, readers=1, checksums=True
        ),
        linked_nodes=4,
        now=replace(PLAIN.now, stagger_groups=2),
    ),
    "little-memory": replace(
        PLAIN,
        memory=replace(
            PLAIN.memory,
            bound="address_space",
            bound_bytes=5 * GIB,
            is_half_of_address_space=True,
            held_bytes=2000 * MIB,
            retained_bytes=90 * MIB,
            on_loan=True,
            batch_buffer_bytes=40 * KIB,
        ),
        now=replace(PLAIN.now, mapped_from_epoch=2, all_batch_buffers_kept=True),
    ),
    "fallbacks": replace(
        PLAIN,
        strategy=forebay.Strategy(access="io_uring", coalesce=4, stagger=2),
        fallbacks=tuple(
            Fallback(wanted=wanted, reason=f"reason {number}")
            for number, wanted in enumerate(
                (
                    "recipe",
                    "mapping",
                    "io_uring",
                    "direct",
                    "coalesce",
                    "stagger",
                    "handoff",
                    "walk",
                    "checksums",
                    "gather_threads",
                    "prefault",
                )
            )
        ),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_facts_are_rendered_as_text(snapshot, name):
    snapshot(f"explain/{name}", "\n".join(lines(CASES[name])))


@pytest.mark.parametrize(
    "strategy", ["forebay", "mmap", "pread", "io_uring", "lmdb", "lmm", "lmm-dio", "async"]
)
def test_explain_is_who_the_loader_is_and_then_its_facts(small_lmdb, strategy):
    order = "group" if strategy in ("forebay", "async") else "sequential"
    with forebay.Loader(
        small_lmdb, 8, strategy=forebay_lab.strategy(strategy), order=order, world="single"
    ) as loader:
        pass
    header, *rest = loader.explain().splitlines()
    assert rest == lines(loader.config)
    for fact in ("train", "0", "1", loader.world.node, loader.world.source):
        assert fact in header
