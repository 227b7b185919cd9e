"""A daemon that echoes requests; ``fails`` in its configuration ends it during start-up."""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from forebay._daemon.serve import main
from forebay.errors import StorageError


def serve(configuration):
    configuration = json.loads(configuration)
    if configuration["fails"] is not None:
        raise StorageError(configuration["fails"])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(configuration["socket"])
        listener.listen()
        request = {}
        while request.get("command") != "end":
            connection, _ = listener.accept()
            with connection, connection.makefile("rw") as lines:
                request = json.loads(lines.readline())
                lines.write(json.dumps({**request, "ok": True, "pid": os.getpid()}) + "\n")
    Path(configuration["socket"]).unlink()


if __name__ == "__main__":
    sys.exit(main(serve))
