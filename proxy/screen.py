"""What `warmroute top` shows of a frame: the fleet and its hit rates, in as many lines as there are. Pure.

Names come from replicas and clients: shown as text, never as markup, and never with what a terminal would
take for a command.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from proxy.figures import NONE, Frame, count, grouped, percent, quantile, seconds, short, total

WARM, COOL, QUIET, FAIR, BAD = "dark_orange3", "steel_blue", "bright_black", "yellow", "red"
_STAGES = ("prompt", "available", "routed", "reported", "reported_prompt")
_LEAST_REPLICAS = 3
_ROWS = 4
"""Of what is told beside the fleet."""
BAR = 8


def draw(
    frame: Frame,
    over: Frame,
    span: float | None,
    asked: Mapping[str, Frame] = {},
    *,
    height: int = 24,
    state: str = "",
) -> RenderableType:
    """One screen of `height` lines at most.

    `over`: the counters to show, of the last `span` seconds, or since the start if None. `asked`: what
    /admin tells of `requests`, `canary`, `prefixes` and `breaks`, as far as it does. `state`: what is wrong,
    if anything.
    """
    groups, times = _groups(over), _times(over)
    head = [_first(frame, span, state), _second(frame, over, span), Text("")]
    below = [_queue(frame), *_canary(asked.get("canary", {}).get("canary"))]
    used = len(head) + groups.row_count + 2 + times.row_count + 2 + 1 + len(below) + 1
    replicas = frame["replicas"]
    shown = replicas[: max(_LEAST_REPLICAS, height - used - 2)]
    parts: list[RenderableType] = [*head, groups, Text(""), times, Text(""), _fleet(shown, over)]
    used += len(shown)
    if len(shown) < len(replicas):
        parts.append(Text(f"… and {len(replicas) - len(shown)} more replicas", QUIET))
        used += 1
    parts += [Text(""), *below]
    for name, most, table in (
        ("breaks", _ROWS, _breaks),
        ("prefixes", _ROWS, _prefixes),
        ("requests", height, _decisions),
    ):
        rows = asked.get(name, {}).get(name, [])[: min(most, height - used - 3)]
        if rows and height - used > 3:
            parts += [Text(""), table(rows)]
            used += len(rows) + 2
    return Group(*parts)


def plain(text: Any) -> str:
    """Text as it may be shown: a control character could move the cursor, or worse."""
    return "".join(each if each.isprintable() else "·" for each in str(text))


def _first(frame: Frame, span: float | None, state: str) -> Text:
    line = Text("warmroute", "bold", no_wrap=True, overflow="ellipsis")
    line.append(f"  {plain(frame['policy'])}", "not bold")
    line.append("  " + ("since start" if span is None else f"last {span:.0f} s"), QUIET)
    if state:
        line.append(f"  {plain(state)}", FAIR)
    for name, part in frame["parts"].items():
        if part.get("up") is False:
            line.append(f"  {plain(name)}: {plain(part.get('why', 'down'))}", FAIR)
    for name, model in frame["models"].items():
        if model.get("degraded"):
            line.append(f"  {plain(name)}: {plain(model['degraded'])}", FAIR)
    return line


def _second(frame: Frame, over: Frame, span: float | None) -> Text:
    tokens, told = over["tokens"], total(over["tokens"], "reported_prompt")
    predicted = percent(total(tokens, "routed"), total(tokens, "prompt"))
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append(percent(total(tokens, "reported"), told) if told else predicted, f"bold {WARM}")
    line.append(" of prompt tokens cached", QUIET)
    line.append(f" (predicted {predicted})  " if told else " (predicted)  ", QUIET)
    requests = total(over["requests"], "count")
    line.append(count(requests) if span is None else f"{requests / max(span, 1e-9):.1f}", "bold")
    line.append(" requests  " if span is None else " requests/s  ", QUIET)
    line.append(count(total(frame["replicas"], "in_flight")), "bold")
    line.append(" in flight", QUIET)
    return line


def _groups(over: Frame) -> Table:
    columns = ("group", "prompt tokens", "available", "routed", "reported", "lost by routing")
    table = _table("<>>>>>", columns)
    for row in grouped(over["tokens"], "group", _STAGES):
        prompt = row["prompt"]
        lost = row["available"] - row["routed"]
        table.add_row(
            plain(row["group"]),
            count(prompt),
            percent(row["available"], prompt),
            percent(row["routed"], prompt),
            Text(percent(row["reported"], row["reported_prompt"]), f"bold {WARM}"),
            percent(lost, prompt),
        )
    return table


def _times(over: Frame) -> Table:
    table = _table("<<>>>", ("group", "class", "streams", "TTFT P50", "TTFT P95"))
    bounds = over["ttft"]["bounds"]
    for each in over["ttft"]["series"]:
        counts = each["counts"]
        table.add_row(
            plain(each["group"]),
            plain(each["priority"]),
            count(sum(counts)),
            seconds(quantile(bounds, counts, 0.5)),
            seconds(quantile(bounds, counts, 0.95)),
        )
    return table


def _fleet(replicas: Sequence[Frame], over: Frame) -> Table:
    routed: dict[str, float] = {}
    for row in over["decisions"]:
        routed[row["replica"]] = routed.get(row["replica"], 0) + row["count"]
    columns = ("replica", "state", "load", "queued", "cache", "KV", "index", "prefill/s", "requests")
    table = _table("<<>><><>>", columns)
    for row in replicas:
        if "up" not in row:  # it has left, and still answers
            table.add_row(plain(row["name"]), Text(plain(row["state"]), QUIET), count(row["in_flight"]))
            continue
        table.add_row(
            plain(row["name"]),
            _health(row),
            count(row["in_flight"]),
            short(row["queued_tokens"]),
            _bar(row["index_blocks"], row["cache_blocks"] or row["index_capacity"]),
            NONE if row["kv_usage"] is None else f"{100 * row['kv_usage']:.0f} %",
            Text(plain(row["index_mode"]), FAIR if row["index_mode"] == "stale" else ""),
            short(row["prefill_tokens_per_second"]),
            count(routed.get(row["name"], 0)),
        )
    return table


def _queue(frame: Frame) -> Text:
    line = Text("queue", QUIET, no_wrap=True, overflow="ellipsis")
    for name, waiting in frame["queue"]["waiting"].items():
        line.append(f"  {plain(name)} ", "default")
        line.append(count(waiting), "bold default" if waiting else "default")
        for reason, turned_away in frame["queue"]["shed"].get(name, {}).items():
            line.append(f" ({count(turned_away)} {plain(reason)})", FAIR)
    return line


def _canary(canary: Frame | None) -> list[Text]:
    if canary is None:
        return []
    line = Text("canary", QUIET, no_wrap=True, overflow="ellipsis")
    line.append(f"  {plain(canary['policy'])}", "default")
    line.append(f"  {canary['percent']:g} %", "bold default")
    phase = plain(canary["phase"]).replace("_", " ")
    line.append(f"  {phase}", FAIR if canary["phase"] == "rolled_back" else "default")
    if canary["why"]:
        line.append(f": {plain(canary['why'])}", QUIET)
    return [line]


def _breaks(rows: Sequence[Frame]) -> Table:
    table = _table("<<>>", ("prefix break", "kind", "tokens/day", "requests/day"))
    for row in rows:
        found = plain(row["path"]), plain(row["kind"]), short(row["tokens_per_day"])
        table.add_row(*found, short(row["requests_per_day"]))
    return table


def _prefixes(rows: Sequence[Frame]) -> Table:
    table = _table("<>>><", ("hot prefix", "tokens", "prompts/min", "saved/min", "held by"))
    for row in rows:
        table.add_row(
            plain(row["id"]),
            count(row["tokens"]),
            short(row["requests_per_minute"]),
            short(row["tokens_saved_per_minute"]),
            plain(", ".join(each["replica"] for each in row["holders"])),
        )
    return table


def _decisions(recent: Sequence[Frame]) -> Table:
    table = _table("<<<>>>", ("recent request", "replica", "decision", "predicted", "reported", "TTFT"))
    for row in recent:
        tokens, ttft = row["tokens"], row["ms"]["ttft"]
        reported = tokens["reported_cached"]
        table.add_row(
            plain(row["id"]),
            plain(row["replica"] or NONE),
            plain(row["decision"] or row["outcome"]),
            percent(tokens["predicted_cached"], tokens["prompt"]),
            NONE if reported is None else percent(reported, tokens["reported_prompt"] or tokens["prompt"]),
            seconds(None if ttft is None else ttft / 1000),
        )
    return table


def _health(row: Frame) -> Text:
    if row["state"] == "down":
        return Text("down", f"bold {BAD}")
    if row["state"] != "up":
        return Text(plain(row["state"]), FAIR)
    if row["breaker"] != "closed":
        return Text(plain(row["breaker"].replace("_", "-")), FAIR)
    return Text("suspect", FAIR) if row["suspect"] else Text("up", "green")


def _bar(part: float, of: float | None) -> Text:
    if not of:
        return Text(short(part))
    filled = min(round(BAR * part / of), BAR)
    bar = Text("━" * filled, WARM)
    bar.append("─" * (BAR - filled), QUIET)
    return bar.append(f" {100 * part / of:.0f} %", "default")


_Justify = Literal["left", "right"]


def _table(sides: str, names: Sequence[str]) -> Table:
    """A table without lines; `sides` says for each column where its text stands."""
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style=QUIET)
    for side, name in zip(sides, names, strict=True):
        justify: _Justify = "left" if side == "<" else "right"
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis")
    return table
