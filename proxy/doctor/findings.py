"""What the doctor found: plain values, and how they are shown. Pure but for the drawing."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Level(IntEnum):
    """How bad it is."""

    FINE = 0
    NOTE = 1
    """Worth knowing; nothing is lost by it."""
    WARNING = 2
    """Something is not seen, or slower than it could be."""
    LOSS = 3
    """It loses hits, or requests."""


_SHOWN = {
    Level.FINE: ("fine", "green"),
    Level.NOTE: ("note", "cyan"),
    Level.WARNING: ("warning", "yellow"),
    Level.LOSS: ("loses hits", "bold red"),
}


@dataclass(slots=True, frozen=True)
class Finding:
    """One thing that was looked at."""

    about: str
    """A replica's name, or `redis`, `fleet`."""
    check: str
    level: Level
    what: str
    """What was found, in a phrase."""
    fix: str = ""
    """The flag of the engine or the setting of the proxy that changes it."""


class Findings:
    """All that was found about one replica, or about Redis."""

    def __init__(self, about: str) -> None:
        self.about = about
        self.all: list[Finding] = []

    def fine(self, check: str, what: str) -> None:
        """It is as it should be."""
        self.all.append(Finding(self.about, check, Level.FINE, what))

    def note(self, check: str, what: str, fix: str = "") -> None:
        """Worth knowing."""
        self.all.append(Finding(self.about, check, Level.NOTE, what, fix))

    def warn(self, check: str, what: str, fix: str) -> None:
        """Something is not seen, or slower than it could be."""
        self.all.append(Finding(self.about, check, Level.WARNING, what, fix))

    def loss(self, check: str, what: str, fix: str) -> None:
        """It loses hits, or requests."""
        self.all.append(Finding(self.about, check, Level.LOSS, what, fix))


def show(findings: Sequence[Finding], console: Console) -> None:
    """Draw a table, and a line that sums it up."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for name in ("of", "what", ""):
        table.add_column(name, no_wrap=True)
    table.add_column("found, and what fixes it", overflow="fold")
    last = ""
    for each in findings:
        word, style = _SHOWN[each.level]
        text = Text(each.what)
        if each.fix:
            text.append(f"\n→ {each.fix}", style="bold")
        shown = "" if each.about == last else each.about
        table.add_row(Text(shown), Text(each.check), Text(word, style=style), text)
        last = each.about
    console.print(table)
    console.print(Text(summary(findings)))


def summary(findings: Iterable[Finding]) -> str:
    """How many there are of each level, in a sentence."""
    counts = dict.fromkeys(Level, 0)
    for each in findings:
        counts[each.level] += 1
    losses, warnings = counts[Level.LOSS], counts[Level.WARNING]
    if not losses and not warnings:
        return f"{_counted(counts[Level.FINE], 'check')}, nothing wrong."
    of = "thing that loses" if losses == 1 else "things that lose"
    return f"{losses} {of} hits or requests, {_counted(warnings, 'warning')}, {counts[Level.FINE]} fine."


def _counted(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"
