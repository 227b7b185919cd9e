"""Start the store daemon, and end when it listens.

``python -m forebay.tools.store MEMORY_BYTES IDLE_S``; 0 bytes stand for half of the memory of the
node. Prints ``started``, or ``running`` if this user has a daemon on this node.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from forebay._daemon.detach import detach

__all__ = ["main"]


def main() -> int:
    """Detach a daemon, and wait until it listens; return its exit status if it does not."""
    memory_bytes, idle_s = int(sys.argv[1]) or None, float(sys.argv[2])

    def serve(listening: Callable[[str], None]) -> None:
        from forebay import _native

        def said(is_new: bool) -> None:
            listening("started" if is_new else "running")

        _native.serve_store(memory_bytes, idle_s, said)

    return detach(serve)


if __name__ == "__main__":
    sys.exit(main())
