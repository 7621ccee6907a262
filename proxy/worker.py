"""One of several workers: `python -m proxy.worker CHANNEL SOCKET…`, started by the supervisor alone.

The arguments are descriptors: of the channel to the supervisor, and of the sockets to listen on.
"""

import asyncio
import socket
import sys

import uvloop

from proxy import lifecycle, logs
from proxy.workers.child import settings_from
from proxy.workers.siblings import Siblings


async def _run(channel: int, listening: list[int]) -> int:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=channel))
    settings = await settings_from(reader)
    logs.configure(json=settings.log_format == "json", level=settings.log_level)
    siblings = Siblings(reader, writer, [socket.socket(fileno=each) for each in listening])
    return await lifecycle.serve(settings, siblings)


if __name__ == "__main__":
    sys.exit(uvloop.run(_run(int(sys.argv[1]), [int(each) for each in sys.argv[2:]])))
