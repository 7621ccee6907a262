"""`warmroute breaks FILE`: where the prompts of a file part. Reads the file, prints a list, keeps nothing."""

from collections.abc import Iterable, Sequence
from math import inf

import msgspec

from proxy.breaks.finder import Finder
from proxy.breaks.outline import outline_line


def find(
    lines: Iterable[bytes], *, windows: bool = False, hours: float | None = None
) -> tuple[int, list[dict[str, object]]]:
    """How many prompts there are in a file's lines, and their breaks.

    Each line is a request's body, or a line of an OpenAI batch. No line says when it was sent, so what is
    told is of the whole file; for a day too, if it is known how many `hours` of traffic it holds.
    """
    finder = Finder(0.0, windows=windows, most_masked=inf)
    for line in lines:
        if line.strip():
            finder.look(outline_line(line), 0.0)
    return finder.looked, finder.totals(None if hours is None else 24 / hours)


def page(prompts: int, breaks: Sequence[dict[str, object]]) -> str:
    """The same for a person."""
    if not breaks:
        return f"{prompts:,} prompts, and no place where they part for no reason\n"
    lines = [f"{prompts:,} prompts; {len(breaks)} {'breaks' if len(breaks) > 1 else 'break'}:\n"]
    for each in breaks:
        daily = "" if "tokens_per_day" not in each else f" ({each['tokens_per_day']:,} a day)"
        lines.append(
            f"{each['kind']} at {each['path']}, character {each['offset']:,}: {each['requests']:,} requests, "
            f"about {each['tokens']:,} tokens computed anew{daily}\n  {each['fix']}"
        )
        if "window" in each:
            lines.append(f"  {each['window']!r}")
    return "\n".join(lines) + "\n"


def as_json(prompts: int, breaks: Sequence[dict[str, object]]) -> str:
    """The same for a program."""
    return msgspec.json.encode({"prompts": prompts, "breaks": breaks}).decode() + "\n"
