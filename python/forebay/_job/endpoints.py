"""How the leaders of the nodes of a job learn where they reach each other, when a loader is made.

Every rank sends all others, over the channel of the job (`forebay._job.channel`), which rank leads
its node. A leader adds where it listens, and the first one a secret. From then on leaders talk over
connections of their own, in threads without Python (docs/nodes.md).
"""

from __future__ import annotations

import os
import struct
from typing import Any

from forebay import _native
from forebay._core import ForebayError, option_error
from forebay._job.channel import Channel
from forebay._job.rank0 import INTERFACE_VARIABLE
from forebay._job.rank_info import RankInfo
from forebay._warn import warn

_NAME_BYTES = 64
_PROBLEM_BYTES = 256
_SECRET_BYTES = 32

# Leader of the rank's node, process, name of the node; of leaders: why it cannot listen, secret,
# where it is reached.
_ENDPOINT_RECORD = struct.Struct(
    f"<Ii{_NAME_BYTES}s{_PROBLEM_BYTES}s{_SECRET_BYTES}s{_native.ENDPOINT_BYTES}s"
)


def meet(
    rank_info: RankInfo,
    channel: Channel,
    deadline_s: float,
    listener_type: type[_native.Listener] = _native.Listener,
) -> tuple[dict[str, Any] | None, _native.Listener | None]:
    """Exchange what links between the nodes need (collective over the job).

    The listener is of ``listener_type``, the class of the engine's native module.

    Returns
    -------
    spec : dict or None
        What the engine of a leader needs; None for other ranks, and where there is one node or more
        than can be linked.
    listener : Listener or None
        Where this leader is reached.

    Raises
    ------
    OptionError
        On every rank, if a leader cannot listen.
    RendezvousError
        If not all ranks take part within ``deadline_s`` seconds.
    """
    leads = rank_info.rank == rank_info.local_ranks[0] and len(rank_info.local_ranks) < rank_info.size
    listener, problem = _listen(listener_type) if leads else (None, "")
    own = _ENDPOINT_RECORD.pack(
        rank_info.local_ranks[0],
        os.getpid(),
        rank_info.node.encode()[:_NAME_BYTES],
        problem.encode()[:_PROBLEM_BYTES],
        os.urandom(_SECRET_BYTES) if leads else b"",
        listener.endpoint if listener is not None else b"",
    )
    try:
        everyone = [
            _ENDPOINT_RECORD.unpack(one)
            for one in channel.gather(own, "exchanging addresses of the nodes", deadline_s)
        ]
    except BaseException:
        if listener is not None:
            listener.close()
        raise
    if problems := [(rank, _text(one[3])) for rank, one in enumerate(everyone) if one[3].strip(b"\0")]:
        rank, problem = problems[0]
        raise option_error(f"rank {rank}, which leads its node: {problem}")
    leaders = sorted({one[0] for one in everyone})
    if len(leaders) > _native.MAX_NODES and rank_info.rank == leaders[0]:
        warn(
            f"the job has {len(leaders)} nodes, and at most {_native.MAX_NODES} are linked: "
            "failures on other nodes are not reported"
        )
    if listener is None or not 1 < len(leaders) <= _native.MAX_NODES:
        return None, None
    ranks: dict[int, list[int]] = {leader: [] for leader in leaders}
    for rank, one in enumerate(everyone):
        ranks[one[0]].append(rank)
    nodes = [
        {
            "name": _text(everyone[leader][2]),
            "ranks": ranks[leader],
            "pids": [everyone[rank][1] for rank in ranks[leader]],
        }
        for leader in leaders
    ]
    spec = {
        "own_node": leaders.index(rank_info.rank),
        "nodes": nodes,
        "endpoints": [everyone[leader][5].hex() for leader in leaders],
        "secret": everyone[leaders[0]][4].hex(),
    }
    return spec, listener


def _listen(listener_type: type[_native.Listener]) -> tuple[_native.Listener | None, str]:
    try:
        return listener_type(os.environ.get(INTERFACE_VARIABLE) or None), ""
    except ForebayError as error:
        return None, str(error)


def _text(field: bytes) -> str:
    return field.rstrip(b"\0").decode(errors="replace")
