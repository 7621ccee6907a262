"""What `warmroute top` draws: within the terminal, and nothing that a terminal would obey."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from proxy.metrics import TTFT_BUCKETS
from proxy.screen import draw

HOSTILE = "\x1b]0;owned\x07[red]\x1b[2J\r\n\u202egnp.exe"


def replica(name: str, **changed: Any) -> dict[str, Any]:
    return {
        "name": name,
        "state": "up",
        "up": True,
        "breaker": "closed",
        "suspect": False,
        "in_flight": 3,
        "queued_tokens": 45_000,
        "index_blocks": 500,
        "cache_blocks": 1000,
        "index_capacity": 1000,
        "kv_usage": 0.42,
        "index_mode": "events",
        "prefill_tokens_per_second": 18_000.0,
        **changed,
    }


def frame(*replicas: dict[str, Any], group: str = "shared") -> dict[str, Any]:
    counts = [0] * len(TTFT_BUCKETS) + [0]
    counts[8] = 10
    labels = {"group": group, "priority": "standard"}
    stages = {"prompt": 1000, "available": 800, "routed": 750, "reported": 740, "reported_prompt": 1000}
    return {
        "at": 1.0,
        "policy": "prefix_cost",
        "models": {},
        "parts": {},
        "replicas": list(replicas),
        "queue": {"waiting": {"interactive": 0, "batch": 7}, "shed": {"batch": {"late": 2}}},
        "requests": [{**labels, "code": "200", "count": 10}],
        "tokens": [{"arm": "main", "group": group, **stages}],
        "decisions": [{"decision": "hit", "replica": "r1", "count": 10}],
        "ttft": {"bounds": TTFT_BUCKETS, "series": [{**labels, "counts": counts}]},
    }


def outline(**changed: Any) -> dict[str, Any]:
    tokens = {"prompt": 100, "predicted_cached": 50, "reported_prompt": None, "reported_cached": None}
    told = {"id": "x", "replica": "r1", "decision": "hit", "outcome": "ok"}
    return {**told, "tokens": tokens, "ms": {"ttft": None}, **changed}


def shown(
    told: dict[str, Any], *recent: dict[str, Any], width: int = 80, height: int = 24, **more: Any
) -> str:
    console = Console(width=width, height=height, file=io.StringIO(), color_system=None, highlight=False)
    asked = {"requests": {"requests": list(recent)}, **more.pop("asked", {})}
    console.print(draw(told, told, more.pop("span", None), asked, height=height, **more))
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_figures_are_there():
    text = shown(frame(replica("r1")), outline(id="req-7"))
    for part in (
        "74.0 %",
        "80.0 %",
        "75.0 %",
        "5.0 %",
        "175 ms",
        "243 ms",
        "50 %",
        "42 %",
        "45.0k",
        "events",
    ):
        assert part in text, part
    assert re.search(r"r1 +up +3 ", text)
    assert "batch 7 (2 late)" in text
    assert re.search(r"req-7 +r1 +hit +50.0 %", text)
    assert "since start" in text
    assert "last 42 s" in shown(frame(replica("r1")), span=42.0)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (80, 18), (60, 24), (200, 60)])
@pytest.mark.parametrize("count", [0, 1, 4, 40])
def test_it_fits(width, height, count):
    told = frame(*(replica(f"replica-{number}") for number in range(count)))
    lines = shown(told, *(outline(id="r" * 200) for _ in range(40)), width=width, height=height).splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    if count == 40 and height < 60:
        assert "more replicas" in "\n".join(lines)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"state": "down", "up": False}, "down"),
        ({"state": "draining"}, "draining"),
        ({"breaker": "half_open"}, "half-open"),
        ({"suspect": True}, "suspect"),
        ({"kv_usage": None, "cache_blocks": None, "index_capacity": None}, "500"),
    ],
)
def test_what_is_out_of_the_ordinary_is_said(changed, words):
    assert words in shown(frame(replica("r1", **changed)))


def test_a_replica_that_leaves_has_no_more_than_its_load():
    leaving = {"name": "old", "url": "http://old", "state": "leaving", "in_flight": 2}
    assert re.search(r"old +leaving +2", shown(frame(replica("r1"), leaving)))


def test_what_is_degraded_is_said():
    told = frame(replica("r1"))
    told["parts"] = {"redis": {"up": False, "why": "refused"}}
    assert "redis: refused" in shown(told)
    assert "gone" in shown(told, state="gone")


def hostile(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: hostile(each) for name, each in told.items()}
    if isinstance(told, list):
        return [hostile(each) for each in told]
    return HOSTILE if isinstance(told, str) else told


ASKED = {
    "canary": {"canary": {"policy": "p2c", "percent": 25.0, "phase": "rolled_back", "why": "it was slow"}},
    "prefixes": {
        "prefixes": [
            {
                "id": "0f1e",
                "tokens": 4816,
                "requests_per_minute": 40.0,
                "tokens_saved_per_minute": 190_000,
                "holders": [{"replica": "r1"}, {"replica": "r3"}],
            }
        ]
        * 9
    },
    "breaks": {
        "breaks": [
            {"path": "$.messages[0]", "kind": "timestamp", "tokens_per_day": 2e6, "requests_per_day": 900.0}
        ]
        * 9
    },
}


def test_what_else_is_known_is_told_where_there_is_room():
    text = shown(frame(replica("r1")), *(outline() for _ in range(9)), height=40, asked=ASKED)
    for words in ("p2c  25 %  rolled back: it was slow", "2.00M", "timestamp", "190k", "r1, r3"):
        assert words in text
    assert text.count("timestamp") == 4
    for height in range(14, 40):
        lines = shown(frame(replica("r1")), outline(), height=height, asked=ASKED).splitlines()
        assert len(lines) <= height


def test_no_name_reaches_the_terminal_as_a_command():
    told = frame(
        replica(HOSTILE, breaker=HOSTILE, index_mode=HOSTILE), replica("b", state=HOSTILE), group=HOSTILE
    )
    told["policy"] = HOSTILE
    told["models"] = {HOSTILE: {"degraded": HOSTILE}}
    told["queue"]["waiting"] = {HOSTILE: 1}
    text = shown(
        told,
        outline(id=HOSTILE, replica=HOSTILE, decision=HOSTILE),
        width=400,
        height=60,
        state=HOSTILE,
        asked=hostile(ASKED),
    )
    assert set(text) & {"\x1b", "\x07", "\r", "\u202e"} == set()
    assert "[red]" in text
