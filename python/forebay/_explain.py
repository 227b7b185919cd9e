"""The facts of a loader as text: a pure function of :class:`forebay.config.Config`."""

from __future__ import annotations

from collections.abc import Iterator

from forebay.config import (
    Config,
    EpochEnd,
    EpochForecast,
    Locality,
    Mixture,
    NoCopies,
    Order,
    ShuffleQuality,
    StoreFacts,
    Streaming,
    Tiers,
)

_KIB = 1 << 10
_MIB = 1 << 20

# What the loader does instead of what was requested.
_INSTEAD = {
    "recipe": "the ordinary index is used, not one computed from a recipe",
    "mapping": "the files are not mapped but read by pread",
    "io_uring": "reads use pread, not io_uring",
    "direct": "reads go through the page cache, not O_DIRECT",
    "coalesce": "coalesce= changes nothing",
    "stagger": "stagger= changes nothing",
    "handoff": "a root walks by itself, without the cursor of another",
    "walk": "samples are found by the index, not by walking",
    "checksums": "no checksums of records are computed",
    "gather_threads": "fewer threads gather",
    "prefault": "memory is not touched ahead of the readers",
    "tiers": "reads go to the source",
    "kept_share": "the share of this node was loaded from the source, or is not kept",
}

_LOCATED = {
    "cursor": "each rank walks from record to record by itself and copies from its own mapping; a missing page is a page fault",
    "roots": "{readers} root(s) of this node walk from record to record through a mapping, for all its ranks",
    "handoff": "one root of the job walks at a time and hands its cursor to the next one, which prefetches the pages that it "
    "will probably need",
}

_SCANNED = {
    "this": "the leader of this node walked through all records, for the whole job",
    "other": "the leader of another node walked through all records, for the whole job",
    "each": "the leader of each node walked through all records, as the nodes are not linked",
}


def _size(size_bytes: int) -> str:
    """Return a size in whole MiB, or below that in KiB; parts are rounded up."""
    unit, name = (_MIB, "MiB") if size_bytes >= _MIB else (_KIB, "KiB")
    return f"{-(-size_bytes // unit)} {name}"


def lines(config: Config) -> list[str]:
    """Return what was decided and why, a line each."""
    parts = (
        _given,
        _order,
        _index,
        _access,
        _reading,
        _store,
        _tiers,
        _memory,
        _per_sample,
        _fallbacks,
        _now,
    )
    return [line for part in parts for line in part(config)]


def _given(config: Config) -> Iterator[str]:
    for name, given in config.given.items():
        if not given.is_argument:
            yield f"{name} = {given.value} from {given.origin}"


def _order(config: Config) -> Iterator[str]:
    order = config.order
    if order.local is not None:
        yield f"order: {order.kind}{_locality(order.local)}"
    elif order.streaming is not None:
        yield from _streaming(order.streaming)
    elif order.group_samples is None:
        yield f"order: {order.kind}"
    else:
        ranks = ", ".join(map(str, order.allowed_ranks))
        yield (
            f"order: groups of {order.group_samples} samples, shuffled in windows of {order.group_window}, "
            f"in {order.lanes} lanes; the same stream on {ranks} ranks"
        )
    if order.mixture is not None:
        yield from _mixture(order.mixture)
    yield from _ends(order)
    if order.expected_epochs is not None:
        yield f"epochs: {order.expected_epochs} expected; nothing is read ahead beyond them"
    yield from _shuffle_quality(config, order.shuffle_quality)


def _ends(order: Order) -> Iterator[str]:
    """Say what an epoch has, and what it would have with another ``last_batch``."""
    # At its end, `carry` has what `fill` has.
    same = {"carry": "fill"}.get(order.last_batch, order.last_batch)
    for end in order.ends:
        if end.last_batch == same:
            yield f'epoch: {_end(end)} (last_batch="{order.last_batch}")'
    for end in order.ends:
        if end.last_batch != same and {one.delivered for one in order.ends} != {end.delivered}:
            yield f'epoch: with last_batch="{end.last_batch}" it would be {_end(end)}'


def _end(end: EpochEnd) -> str:
    distinct = end.delivered - end.repeated
    what = "each sample once"
    if end.repeated:
        what = f"{distinct} distinct, {end.repeated} of them twice"
    if end.left_out:
        what = f"{end.left_out} left out"
    return f"{end.delivered} samples in {end.steps} steps, {what}"


# When an epoch of a mixture ends, by the word of `stop=`.
_STOPS = {
    "first": "an epoch ends before a sample would come twice",
    "all": "an epoch ends when each sample has come",
    "never": "an epoch never ends",
}


def _mixture(mixture: Mixture) -> Iterator[str]:
    yield f'mixture: {len(mixture.sources)} sources; {_STOPS[mixture.stop]} (stop="{mixture.stop}")'
    for source in mixture.sources:
        passes = "" if source.passes is None else f", passed {source.passes:.4g} times per epoch"
        yield f"mixture: {source.name}: {_share(source.weight)}; {source.samples} samples{passes}"


def _streaming(streaming: Streaming) -> Iterator[str]:
    kept, streamed = _share(streaming.resident_share), _share(1 - streaming.resident_share)
    if streaming.streamed_units == 0:
        yield "order: opportunistic; the nodes keep the whole dataset, and each shuffles what it keeps"
    else:
        window = f"{streaming.window_units} units of about {_large(streaming.unit_bytes)}"
        yield (
            f"order: opportunistic; the nodes keep {kept} of the samples and stream {streamed} once per epoch "
            f"({_large(streaming.streamed_bytes)}, all {streaming.nodes} node(s) together), in a window of {window}"
        )
    yield (
        f"order: this node keeps {_share(streaming.own_resident_share)} of the samples in "
        f"{_large(streaming.resident_bytes)} of memory; it read {_large(streaming.loaded_bytes)} from the source for them"
    )
    bound = "" if streaming.entropy_bound is None else f" (at least {streaming.entropy_bound:g})"
    yield (
        f"order: entropy {streaming.order_entropy:.3f} of a full shuffle's{bound}; cross-entropy "
        f"{streaming.cross_entropy:.3f} nats per sample"
    )
    if streaming.streamed_units:
        more = streaming.streamed_bytes - streaming.streamed_bytes_without_windows
        place = (
            f"; without it the nodes would keep {_large(more)} more, which is streamed in each epoch"
            if more
            else ", which takes no memory from what the nodes keep"
        )
        yield (
            f"order: this entropy costs {_large(streaming.staging_bytes)} of staging memory of this node, for a window of up "
            f"to {_large(streaming.window_bytes)} and what is read meanwhile{place}"
        )
        yield (
            f"order: {streaming.streamed_units} units are streamed, each from another place of the files; where a seek takes "
            "as long as reading one, longer units (unit=) read faster and shuffle neighbours less"
        )


def _locality(local: Locality) -> str:
    if local.nodes == 1:
        return ", which on one node is shuffle"
    dealt = (
        "each step has the samples of shuffle"
        if local.pool_steps == 1
        else f"each {local.pool_steps} steps together have the samples of shuffle"
    )
    moved = 1 - local.local_share
    return (
        f"; {dealt}, each on a node that holds it: {_share(local.local_share)} of a node's samples are of its own share. "
        f"The other {_share(moved)} even out the ranks, as random samples are not spread evenly over the {local.nodes} nodes"
    )


def _shuffle_quality(config: Config, quality: ShuffleQuality) -> Iterator[str]:
    entropy, pairs, shuffled = (
        quality.order_entropy,
        quality.same_group_pairs,
        quality.full_shuffle_same_group_pairs,
    )
    if entropy is not None and pairs is not None and shuffled is not None:
        yield (
            f"shuffle quality: order entropy {entropy:.3f} of a full shuffle's; two samples of a global batch share a group "
            f"with chance {pairs:.4f} ({shuffled:.4f} in a full shuffle)"
        )
    if quality.groups is not None:
        samples, groups = config.data.samples, quality.groups
        yield (
            f"shuffle quality: convergence is proven unharmed for fewer than {quality.proven_epochs} epochs (Meng et al.: "
            f"epochs < N/n = {samples} samples / {groups} groups = {samples / groups:.1f}){_verdict(quality)}"
        )


def _verdict(quality: ShuffleQuality) -> str:
    if quality.within_bound is None:
        return ""
    if quality.within_bound:
        return f"; this holds for {quality.epochs} epoch(s)"
    failed = f"; this fails for {quality.epochs} epoch(s)"
    if quality.suggested_group is None:
        return (
            f'{failed}: the dataset is too small for groups that would do; order="shuffle" has no such bound'
        )
    samples, window = quality.suggested_group.samples, quality.suggested_group.window
    return f'{failed}: order=forebay.Group(samples={samples}, window={window}) would do, as would order="shuffle"'


def _index(config: Config) -> Iterator[str]:
    index = config.index
    if index.source == "recipe":
        word = "verified" if index.verified else "unverified"
        yield f"index: computed from a recipe of {index.recipe_bytes} bytes ({word}), {index.path}"
    elif index.source == "scan":
        yield f"index: {_SCANNED[index.scanning_node or 'this']}"
    else:
        yield {"sidecar": "index: from a sidecar", "build": "index: built for this loader"}[index.source]
    if retained := config.memory.retained_bytes:
        yield (
            f"index: its build read values that lie among the tree's pages; {_size(retained)} of them are kept in memory "
            "and read from there"
        )


def _access(config: Config) -> Iterator[str]:
    data, reading, asked = config.data, config.reading, config.strategy
    if config.store is not None:
        where = "local" if data.is_local else "on other nodes"
        yield f"access: from memory, and by pread for what no node holds ({data.file_system}, {where})"
        return
    text = f"access: {reading.access}"
    if asked.access == reading.access:
        text += ", as asked"
    if reading.io_mode == "mapped":
        text += (
            "; the files are local and in the page cache, so each rank copies its samples from a mapping and reads what "
            "is missing by pread"
        )
    elif reading.access != "mmap" and reading.mapping == "cold":
        text += "; what is in the page cache later is copied from a mapping"
    yield f"{text} ({data.file_system}, {'local' if data.is_local else 'on other nodes'})"
    if reading.direct and asked.direct:
        yield "direct: reads bypass the page cache, as asked"
    elif reading.direct or reading.drops_behind:
        what = (
            "direct: reads bypass the page cache"
            if reading.direct
            else "page cache: readers drop what they have read"
        )
        yield (
            f"{what}, as the files ({_size(data.file_bytes)}) are larger than half of the "
            f"memory ({_size(config.memory.node_bytes)})"
        )


def _reading(config: Config) -> Iterator[str]:
    reading, asked = config.reading, config.strategy
    if config.store is not None:
        yield from _nodes(config)
        return
    is_walk = reading.io_mode == "cursor_walk"
    if is_walk:
        how = "roots" if reading.roots and reading.locate == "cursor" else reading.locate
        yield f"locate: {_LOCATED[how].format(readers=reading.readers)}"
    if reading.readers == 0:
        yield "reads: none ahead of time or for other ranks, so there are no readers"
    else:
        yield (
            f"reads: up to {_size(reading.max_read_bytes)}, joined over gaps of {_size(reading.gap_bytes)}, by "
            f"{reading.readers} reader(s) on this node{', which alone touch storage' if reading.roots else ''}"
        )
    yield from _decoding(config)
    without_effect = {fallback.wanted for fallback in config.fallbacks}
    if asked.prefetch_windows is not None:
        what = "window(s) of each lane" if config.order.kind == "group" else "segment(s)"
        yield f"prefetch windows: {asked.prefetch_windows} {what}, as asked"
    if asked.coalesce is not None and "coalesce" not in without_effect:
        yield f"coalesce: a read spans up to {asked.coalesce} step(s), as asked"
    if asked.stagger is not None and "stagger" not in without_effect:
        groups = (
            "as many groups as is measured to be best"
            if asked.stagger == "auto"
            else f"{asked.stagger} group(s)"
        )
        yield f"stagger: the nodes take turns in {groups}"
    if reading.checksums:
        yield "checksums: that of each record is computed, as asked"
    yield from _nodes(config)


def _decoding(config: Config) -> Iterator[str]:
    reading, units, group = config.reading, config.data.unit_samples, config.order.group_samples
    together = f"up to {units} samples are decoded together"
    if reading.decode_amplification > 1:
        yield (
            f"decoding: {together}, and the order takes them one by one: about {reading.decode_amplification:.0f} are decoded "
            "for each one delivered"
        )
    if kept := config.memory.kept_unit_bytes:
        yield f"decoding: {together}; each process keeps up to {_size(kept)} of them, as the order comes back to them"
    elif units > 1 and group is not None and group % units == 0:
        yield f"decoding: {together}; groups are as large or a multiple, so that each is decoded about once per epoch"


def _nodes(config: Config) -> Iterator[str]:
    if config.linked_nodes is not None:
        yield f"nodes: {config.linked_nodes}, linked by their leaders"


def _store(config: Config) -> Iterator[str]:
    store = config.store
    if store is None:
        return
    chunks = max(1, store.chunks)
    yield f"store: this node holds {_share(store.own_chunks / chunks)} of the dataset in {_large(store.share_bytes)}"
    if store.nodes == 1:
        yield (
            "store: the job has one node, so all samples come from its own memory: the source is read once, before the "
            "first batch"
        )
    else:
        yield (
            f"store: {store.nodes - 1} other node(s) serve theirs over {_transport(store)}; up to "
            f"{store.requests_per_node} requests to each are in flight, of up to {_large(store.request_bytes)}"
        )
    if store.probe is not None:
        yield (
            f"store: a probe of the network fetched {store.probe.rate_mib_s:,.0f} MiB/s from the next node, with a round "
            f"trip of {store.probe.round_trip_us:,.0f} us; the slowest node fetched {store.probe.slowest_rate_mib_s:,.0f} MiB/s"
        )
    rest = store.chunks - store.held_chunks
    if rest:
        yield (
            f"store: {_share(rest / chunks)} of the dataset is in no share and read from the source, the same part of each "
            "step; give store= more memory, or tiers="
        )
    else:
        yield f"store: the nodes hold the whole dataset; this one read {_large(store.loaded_bytes)} from the source for it"
    if store.kept_bytes:
        yield f"store: {_large(store.kept_bytes)} of the share came from the store daemon of this node"
    if store.is_kept:
        yield "store: the store daemon of this node keeps the share for later jobs"


def _transport(store: StoreFacts) -> str:
    if store.transport == "ucx":
        return f"UCX ({', '.join(store.ucx_transports)})"
    return f"TCP (not UCX: {store.no_ucx})"


def _tiers(config: Config) -> Iterator[str]:
    tiers = config.tiers
    if tiers is None:
        return
    chunks = max(1, tiers.chunks)
    left = tiers.chunks
    for level in tiers.levels:
        fitting = min(level.slots, left)
        left -= fitting
        kind = "memory" if level.is_memory else "disk"
        holds = (
            f"holds {_large(level.held_bytes)} of it already"
            if level.held_bytes
            else "holds nothing of it yet"
        )
        yield (
            f"tier {level.path} ({kind}, {_large(level.bytes)}): has room for {_share(fitting / chunks)} of the dataset, "
            f"{holds}"
        )
    fits = "the whole dataset fits" if not left else f"{_share(1 - left / chunks)} of the dataset fits"
    yield f"tiers: {fits}"
    if tiers.no_copies is not None:
        yield f"tiers: {_no_copies(config, tiers, tiers.no_copies)}"
    yield from _forecast(config, tiers)


def _no_copies(config: Config, tiers: Tiers, why: NoCopies) -> str:
    if why.reason == "source_in_memory":
        return "no copies are made: the files are local and in the page cache, which no tier is faster than"
    if why.reason == "one_epoch":
        return "no copies are made: with expected_epochs=1 nothing is read a second time"
    order = config.order
    text = (
        f"no copies are made: in order {order.kind} on {tiers.nodes} nodes, each node would read more than its samples for "
        "them, and all copies together cost more reads than they save"
    )
    if why.pays_from is not None:
        found = (
            "no expected_epochs="
            if order.expected_epochs is None
            else f"expected_epochs={order.expected_epochs}"
        )
        text += f" (they save from expected_epochs={why.pays_from} on, found {found})"
    better = "larger groups give" if order.kind == "group" else 'order="group" gives'
    local = '; with order="local-shuffle" each node reads its own share' if order.kind == "shuffle" else ""
    return f"{text}; {better} each node whole chunks{local}"


# How epochs of a loader are called, the first first.
_EPOCHS = ("first", "second", "third")


def _forecast(config: Config, tiers: Tiers) -> Iterator[str]:
    known = tiers.forecast[: config.order.expected_epochs or len(tiers.forecast)]
    where = "" if tiers.nodes == 1 else f" (all {tiers.nodes} nodes together)"
    for number, (name, epoch) in enumerate(zip(_EPOCHS, known, strict=False)):
        rest = [other for other in known[number:] if not _is_like(epoch, other)]
        is_last = not rest and number + 1 < len(known)
        each = f"the {name} and each later epoch read" if number else "each epoch reads"
        which = each if is_last else f"the {name} epoch reads"
        sizes = [(epoch.source, "the source")]
        sizes += [(size, level.path) for size, level in zip(epoch.levels, tiers.levels, strict=True)]
        read = [f"{_large(size)} from {path}" for size, path in sizes if size >= 1]
        yield f"tiers: {which} {_listed(read) or 'nothing'}{where}"
        if is_last:
            return


def _is_like(one: EpochForecast, other: EpochForecast) -> bool:
    """Return whether two epochs read as much from each level, up to a thousandth of it all."""
    ones, others = (one.source, *one.levels), (other.source, *other.levels)
    slack = sum(ones) / 1000
    return all(abs(size - of_other) <= slack for size, of_other in zip(ones, others, strict=True))


def _share(share: float) -> str:
    return f"{100 * share:.3g} %"


def _listed(parts: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))


def _large(size_bytes: float) -> str:
    """Return a size with one decimal in the unit that suits it."""
    for unit, name in ((1 << 40, "TiB"), (1 << 30, "GiB"), (_MIB, "MiB")):
        if size_bytes >= unit:
            return f"{size_bytes / unit:.1f} {name}".replace(".0 ", " ")
    return _size(int(size_bytes))


def _memory(config: Config) -> Iterator[str]:
    memory = config.memory
    if memory.is_half_of_address_space:
        yield (
            f"memory: RLIMIT_AS (ulimit -v) leaves {_size(memory.bound_bytes)} of address space, of which the default "
            "takes half"
        )
    if memory.held_bytes:
        yield f"memory: other loaders of this job hold {_size(memory.held_bytes)} of the budget"
    if memory.on_loan:
        yield (
            f"memory: other loaders of this process have reserved the {_size(memory.requested_bytes)} that they share, so "
            "this one is made on loan: it takes memory while it is iterated, from loaders that are between epochs or not "
            "iterated"
        )
    staging = f"{_size(memory.staging_bytes)} of" if memory.staging_bytes else "no"
    yield (
        f"memory: {_size(memory.region_bytes)} of {_size(memory.budget_bytes)} on this node: {staging} staging "
        f"blocks, {memory.batch_buffers} batch buffers of {_size(memory.batch_buffer_bytes)} for each rank"
    )
    yield f"memory: the least that works for these options is {_size(memory.minimum_bytes)}"


def _per_sample(config: Config) -> Iterator[str]:
    if (work := config.per_sample) is None:
        return
    names = " and ".join(f"{name}=" for name in work.functions)
    collated = f"; results are collated by {work.collate}" if "transform" in work.functions else ""
    ahead = f"up to {work.prefetch} batch(es) ahead of the script{collated}"
    if work.worker_kind == "thread":
        yield f"functions: {work.threads} thread(s) call {names}, {ahead}"
    else:
        others = " and call batch_transform=" if "batch_transform" in work.functions else ""
        yield f"functions: {work.workers} process(es) call transform=, {work.threads} threads serve them{others}, {ahead}"


def _fallbacks(config: Config) -> Iterator[str]:
    for fallback in config.fallbacks:
        yield f"fallback: {_INSTEAD[fallback.wanted]}: {fallback.reason}"


def _now(config: Config) -> Iterator[str]:
    now = config.now
    if now.stagger_groups is not None:
        yield f"now: the readers take turns in {now.stagger_groups} group(s)"
    yield f"memory in use: {_size(now.touched_bytes)}"
    if now.huge_page_bytes is None:
        yield "now: no huge pages, as this system gives none to shared memory (transparent_hugepage/shmem_enabled)"
    else:
        yield f"now: {_size(now.huge_page_bytes)} of the shared memory are huge pages"
    if now.mapped_from_epoch is not None:
        yield (
            f"now: since epoch {now.mapped_from_epoch} the files are in the page cache, "
            "and each rank copies from there"
        )
    if now.all_batch_buffers_kept:
        yield "now: the script keeps all batch buffers, so batches are copied into private memory"
