"""Huge pages for the interpreter's memory, where the kernel gives them to those who ask (Linux, `madvise`).

A request touches many small objects all over the heap. On pages of 4 KiB nearly each is on another page, and
in a virtual machine, where an address is looked up in two tables, that shows in every request. Python maps
its memory without asking for larger pages, so they are asked for here, once it is there. Never fails: where
they are not to be had, everything is as it was.
"""

import ctypes
import re
from pathlib import Path

HUGE = 2 << 20
"""Bytes of a huge page on x86-64, and on arm64 with pages of 4 KiB."""
AGAIN_SECONDS = 60.0
"""How often to ask for what has been mapped since."""
_HUGEPAGE, _COLLAPSE = 14, 25  # of madvise(2); the second since Linux 6.1
_ANONYMOUS = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p 00000000 00:00 0 *(?:\[heap\])?$")


def ask(*, at_once: bool = False) -> int:
    """Ask for huge pages for all anonymous memory; bytes that were asked for.

    `at_once`: now, rather than by and by in the background; it takes half a millisecond a page.
    """
    try:
        madvise = ctypes.CDLL(None).madvise
        lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    except (OSError, AttributeError):
        return 0
    asked = 0
    for line in lines:
        found = _ANONYMOUS.match(line)
        if found is None:
            continue
        start = -(-int(found[1], 16) // HUGE) * HUGE
        size = int(found[2], 16) // HUGE * HUGE - start
        if size <= 0:
            continue
        where = ctypes.c_void_p(start), ctypes.c_size_t(size)
        if madvise(*where, _HUGEPAGE) == 0:
            asked += size
            if at_once:
                madvise(*where, _COLLAPSE)
    return asked
