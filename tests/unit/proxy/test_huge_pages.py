"""Huge pages are asked for, where there are any."""

import ctypes
import mmap
import re
from pathlib import Path

import pytest

from proxy import huge_pages

OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")
NEEDED = pytest.mark.skipif(
    not OFFERED.exists() or "[never]" in OFFERED.read_text(), reason="this kernel gives no huge pages"
)


def flags(address: int) -> list[str]:
    """What the kernel notes of the mapping that holds an address."""
    within = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            within = int(found[1], 16) <= address < int(found[2], 16)
        elif within and line.startswith("VmFlags:"):
            return line.split()[1:]
    raise AssertionError("it is mapped nowhere")


@NEEDED
def test_anonymous_memory_is_marked_for_huge_pages():
    with mmap.mmap(-1, 4 * huge_pages.HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory[0] = 1
        first = ctypes.c_char.from_buffer(memory)
        middle = ctypes.addressof(first) + 2 * huge_pages.HUGE
        assert "hg" not in flags(middle)
        assert huge_pages.ask() >= 3 * huge_pages.HUGE
        assert "hg" in flags(middle)
        assert huge_pages.ask(at_once=True) >= 3 * huge_pages.HUGE
        assert memory[0] == 1
        del first


def test_without_proc_nothing_is_asked(monkeypatch):
    monkeypatch.setattr(huge_pages, "Path", lambda _: Path("/nowhere/maps"))
    assert huge_pages.ask() == 0
