"""What several workers answer to one question, as one answer: rows that mean the same are one. Pure.

Sums are of what each has seen for itself; in all else the word of the worker that has seen most of it stands.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

Told = dict[str, Any]
Listed = Callable[[Sequence[Told], Mapping[str, str]], Told]
_PREFIX_SUMS = ("requests_per_minute", "tokens_saved_per_minute", "tokens_saved")
_BREAK_SUMS = ("seen", "requests_per_day", "tokens_per_day")
_LOOKED_SUMS = ("requests_that_missed", "requests_looked_at", "most_per_second")


def requests(told: Sequence[Told], query: Mapping[str, str]) -> Told:
    """The latest of all, newest first; as many as were asked for."""
    lists = [each["requests"] for each in told]
    found = sorted((row for rows in lists for row in rows), key=lambda row: -row["ended"])
    most = int(query["limit"]) if "limit" in query else max(map(len, lists))
    return {"requests": found[:most]}


def prefixes(told: Sequence[Told], _query: Mapping[str, str]) -> Told:
    """The hottest prefixes, by what they save."""
    rows = [row for each in told for row in each["prefixes"]]
    found = _joined(rows, ("id",), _PREFIX_SUMS, "requests_per_minute")
    return {"prefixes": sorted(found, key=lambda row: -row["tokens_saved_per_minute"])}


def breaks(told: Sequence[Told], _query: Mapping[str, str]) -> Told:
    """Where prompts stop sharing, the costliest first."""
    rows = [row for each in told for row in each["breaks"]]
    found = _joined(rows, ("path", "offset", "kind", "window"), _BREAK_SUMS, "seen")
    sums = {name: sum(each[name] for each in told) for name in _LOOKED_SUMS}
    return {**told[0], **sums, "breaks": sorted(found, key=lambda row: -row["tokens_per_day"])}


LISTS: Mapping[str, Listed] = {
    "/admin/requests": requests,
    "/admin/prefixes": prefixes,
    "/admin/breaks": breaks,
}


def _joined(rows: Sequence[Told], names: Sequence[str], sums: Sequence[str], busiest: str) -> list[Told]:
    found: dict[tuple[Any, ...], list[Told]] = {}
    for row in rows:
        found.setdefault(tuple(row.get(name) for name in names), []).append(row)
    return [
        {
            **max(alike, key=lambda row: row[busiest]),
            **{name: sum(row[name] for row in alike) for name in sums},
        }
        for alike in found.values()
    ]
