"""Files that are read again when they have changed: keys and certificates, replaced while the proxy runs.

What cannot be used is never taken: the last that could be stays in force, and the log and `fault` say so
until the files are in order again. Files are looked at and read in a thread.
"""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Generic, TypeVar

from proxy.logs import logger

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the files."""

T = TypeVar("T")
_State = tuple[tuple[int, int, int, int] | None, ...]


class Watched(Generic[T]):
    """Some files that make one thing together."""

    def __init__(
        self, what: str, paths: Sequence[Path], read: Callable[[], T], take: Callable[[T], None]
    ) -> None:
        """`read` makes the thing, and raises ValueError or OSError where it cannot; `take` puts it in force.

        Both are called here for the first time, and what they raise is the caller's.
        """
        self.fault: str | None = None
        """Why the files are not what is in force; None if they are."""
        self._what = what
        self._paths = tuple(paths)
        self._read = read
        self._take = take
        self._seen = self._state()
        take(read())

    async def look(self) -> None:
        """Read the files again if they are others than at the last look."""
        state = await asyncio.to_thread(self._state)
        if state == self._seen:
            return
        self._seen = state
        try:
            self._take(await asyncio.to_thread(self._read))
        except (ValueError, OSError) as error:
            self.fault = str(error)
            logger.error("%s: the new file is not used, the old one stays in force: it %s", self._what, error)
        else:
            self.fault = None
            logger.info("%s: read anew", self._what)

    def _state(self) -> _State:
        return tuple(map(_state, self._paths))


def _state(path: Path) -> tuple[int, int, int, int] | None:
    """What changes when a file is written, or another one takes its place; links are followed."""
    try:
        it = path.stat()
    except OSError:
        return None
    return it.st_mtime_ns, it.st_size, it.st_ino, it.st_ctime_ns
