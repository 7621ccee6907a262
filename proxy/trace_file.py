"""A trace on disk: Mooncake's JSON lines with a sidecar, in parts; full ones are renamed, the oldest goes.

One line a request, ordered by `timestamp`: `timestamp` (ms), `input_length`, `output_length` (tokens),
`hash_ids` (one for each block of `block_size` tokens, the last of which may not be full). The format does not
say how large a block is, so `FILE.meta.json` does. Source: github.com/kvcache-ai/Mooncake, FAST25-release.

A part is `FILE`; older ones are `FILE` with .1, .2, … before its suffix. All parts of one process are one
trace: timestamps and ids go on. What an earlier process left is moved out of the way, never appended to,
for its ids are others. Readable by nobody but the owner. Not thread-safe; every call may raise OSError.
"""

import os
from pathlib import Path
from typing import BinaryIO

import msgspec

PARTS = 4
"""Files that a trace's room is divided into."""


class TraceFile:
    """One trace, of blocks of one size."""

    def __init__(self, path: Path, most_bytes: int, meta: dict[str, object]) -> None:
        """Begin a trace. `most_bytes` bound all its parts together; `meta` is said in each sidecar."""
        self._path = path
        self._most = max(1, most_bytes // PARTS)
        self._meta = meta
        self._number = 0
        self._size = 0
        if path.exists() and path.stat().st_size:
            self._shift()
        self._file = self._begin()

    def write(self, line: bytes) -> None:
        """Append one line, which ends in a newline; into a new part, if this one is full."""
        if self._size and self._size + len(line) > self._most:
            self._file.close()
            self._shift()
            self._file = self._begin()
        self._file.write(line)
        self._size += len(line)

    def flush(self) -> None:
        """Hand what was written to the system."""
        self._file.flush()

    def close(self) -> None:
        """End the trace."""
        self._file.close()

    def _begin(self) -> BinaryIO:
        self._size = 0
        meta = {"format": "mooncake", **self._meta, "part": self._number}
        self._number += 1
        with _private(sidecar(self._path)) as file:
            file.write(msgspec.json.format(msgspec.json.encode(meta)) + b"\n")
        return _private(self._path)

    def _shift(self) -> None:
        """Make room for a new part."""
        for number in range(PARTS - 1, 0, -1):
            newer = self._path if number == 1 else part(self._path, number - 1)
            for source, target in (
                (newer, part(self._path, number)),
                (sidecar(newer), sidecar(part(self._path, number))),
            ):
                if source.exists():
                    source.replace(target)


def part(path: Path, number: int) -> Path:
    """Where the `number`-th older part of a trace lies."""
    return path.with_name(f"{path.stem}.{number}{path.suffix}")


def of_worker(path: Path, number: int) -> Path:
    """Where one of several workers records: its numbers for blocks are no other's."""
    return path.with_stem(f"{path.stem}.w{number}")


def sidecar(path: Path) -> Path:
    """Where it is said what a trace's figures mean."""
    return path.with_name(f"{path.name}.meta.json")


def check(path: Path) -> None:
    """See that a trace could be written here. Raises OSError if not."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))


def _private(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb")
