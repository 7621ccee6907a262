"""Names of a test's own, looked up through a function of `loop.getaddrinfo`'s shape."""

import socket
from typing import Any


class Zone:
    """Names and their addresses now; what is no name here does not exist. An address stands for itself."""

    def __init__(self, names: dict[str, list[str]]) -> None:
        self.names = names
        self.asked: list[tuple[str, int]] = []
        """(name, family) of each lookup."""

    async def getaddrinfo(self, host: str, port: int, *, family: int = 0, **_: Any) -> list[tuple[Any, ...]]:
        self.asked.append((host, family))
        found = []
        for address in self.names.get(host, []):
            kind = socket.AF_INET6 if ":" in address else socket.AF_INET
            if family in (socket.AF_UNSPEC, kind):
                end = (address, port, 0, 0) if kind == socket.AF_INET6 else (address, port)
                found.append((kind, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", end))
        if not found:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return found
