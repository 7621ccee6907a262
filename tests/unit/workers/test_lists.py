"""What several workers answer, as one answer."""

from typing import Any

from proxy.workers.lists import LISTS


def test_the_latest_requests_are_of_all():
    one, other = ({"requests": [{"id": t, "ended": t} for t in ended]} for ended in ([5, 3, 1], [4, 2]))
    found = LISTS["/admin/requests"]
    assert [row["id"] for row in found([one, other], {})["requests"]] == [5, 4, 3]
    assert [row["id"] for row in found([one, other], {"limit": "4"})["requests"]] == [5, 4, 3, 2]


def prefix(name: str, rate: float, **more: Any) -> dict[str, Any]:
    saved = {"tokens_saved_per_minute": 10 * rate, "tokens_saved": 100 * rate}
    return {"id": name, "requests_per_minute": rate, **saved, "tokens": 64, **more}


def test_a_prefix_that_several_have_seen_is_one():
    told = [
        {"prefixes": [prefix("a", 1.0, state="steady"), prefix("b", 2.5, state="steady")]},
        {"prefixes": [prefix("a", 2.0, state="growing")]},
    ]
    assert LISTS["/admin/prefixes"](told, {}) == {
        "prefixes": [prefix("a", 3.0, state="growing"), prefix("b", 2.5, state="steady")]
    }


def test_breaks_are_told_once_and_their_costs_added_up():
    def told(seen: int) -> dict[str, Any]:
        row = {"path": "messages[0]", "offset": 7, "kind": "date", "fix": "move it", "seconds_since": 1.0}
        costs = {"seen": seen, "requests_per_day": 10 * seen, "tokens_per_day": 100 * seen}
        looked = {"requests_that_missed": seen, "requests_looked_at": seen, "most_per_second": 10.0}
        return {"breaks": [{**row, **costs}], **looked, "most_of_a_core": 0.01}

    assert LISTS["/admin/breaks"]([told(3), told(4)], {}) == told(7) | {"most_per_second": 20.0}
