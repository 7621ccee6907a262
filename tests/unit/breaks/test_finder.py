"""The break finder: each kind is found and named, clean traffic and hostile prompts are no trouble."""

import json
import sys
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.break_traffic import PLANTED, traffic
from proxy.breaks import pieces
from proxy.breaks.file import find, page
from proxy.breaks.finder import EXEMPLARS, FIXES, MOST_BREAKS, MOST_MASKED, VARIANTS, Finder
from proxy.breaks.outline import MOST_BYTES, MOST_CHARACTERS, Segment, outline, outline_line
from proxy.breaks.pieces import MOST_PIECES, REMEMBERED, Pieces, mask

REST = (
    "You answer questions about the shop's orders, returns and deliveries. Be brief, be friendly, and never "
    "promise a refund. Look orders up before you speak of them. If an order is late, say by how much, and "
    "offer to write to the carrier. Ask for the order's number where it is missing. Speak of nothing else."
)


def bodies(*systems: str, **more) -> list[bytes]:
    return [
        json.dumps({"messages": [
            {"role": "system", "content": system}, {"role": "user", "content": f"Where is it, {at}?"}
        ], **more}).encode()
        for at, system in enumerate(systems)
    ]  # fmt: skip


def kinds(lines: list[bytes]) -> list[tuple[str, str]]:
    return [(each["kind"], each["path"]) for each in find(lines)[1]]


def test_a_planted_break_of_each_kind_among_ten_thousand_requests_is_found_and_named():
    prompts, found = find(traffic(10_000, "planted", each=10))
    assert prompts == 10_000
    assert {each["kind"]: each["path"] for each in found} == PLANTED
    assert len(found) == len(PLANTED), "and nothing else is"
    for each in found:
        assert each["requests"] >= 3
        assert each["tokens"] >= 3 * 64
        assert each["fix"] == FIXES[each["kind"]]
    assert str(page(prompts, found)).count("\n  ") == len(PLANTED)


def test_clean_traffic_raises_no_alarm():
    assert find(traffic(2_000, "clean"))[1] == []


@pytest.mark.parametrize(
    ("kind", "systems"),
    [
        ("timestamp", [f"It is 2026-03-0{at} 12:00:0{at}. {REST}" for at in range(1, 6)]),
        ("timestamp", [f"Now: {at}:15 PM. {REST}" for at in range(1, 6)]),
        ("timestamp", [f"Epoch {1_770_000_000 + at}. {REST}" for at in range(1, 6)]),
        ("date", [f"Today is Tuesday, March {at}, 2026. {REST}" for at in range(1, 6)]),
        ("date", [f"Today is the {at} November 2026. {REST}" for at in range(11, 16)]),
        ("date", [f"Date: {at}/03/2026. {REST}" for at in range(11, 16)]),
        ("date", [f"It is {day}. {REST}" for day in ("Monday", "Friday", "Sunday", "Tuesday")]),
        ("uuid", [f"Trace 6fa459ea-ee8a-3ca4-894e-db77e160355{at}. {REST}" for at in range(5)]),
        ("uuid", [f"Session sess_9f8e7d6c5b{at}. {REST}" for at in range(5)]),
        ("counter", [f"You have {at} messages left. {REST}" for at in range(5)]),
        ("user name", [f"The user is called {name}. {REST}" for name in ("ann", "bo", "cid", "dee")]),
        ("user name", [f"Greet Dr. {name} warmly. {REST}" for name in ("Ann Lee", "Bo", "Cid", "Dee")]),
        ("user name", [f"{name}@b.org wrote to you. {REST}" for name in "abcde"]),
        ("value", [f"Answer in {tone} words. {REST}" for tone in ("plain", "kind", "clear", "warm")]),
        ("whitespace", [f"Be fast.{gap}{REST}" for gap in (" ", "  ", "\n", "\n\n")]),
        ("timestamp", [f"现在是 12:0{at}。请用中文回答所有问题。{REST}" for at in range(5)]),
    ],
)  # fmt: skip
def test_what_differs_is_named(kind, systems):
    assert kinds(bodies(*systems)) == [(kind, "messages[0].content")]


def test_the_offset_is_where_it_begins():
    _, (found,) = find(bodies(*(f"Hello there. The time is 12:3{at} now. {REST}" for at in range(5))))
    assert found["offset"] == len("Hello there. The time is ")
    _, (found,) = find(bodies(*(f"You serve {name} today. {REST}" for name in ("Ann", "Bob", "Cy", "Di"))))
    assert found["offset"] == len("You serve ")


def test_tools_in_another_order_and_keys_in_another_order():
    tools = [
        {"type": "function", "function": {"name": f"tool_{name}", "description": REST}} for name in "xyz"
    ]
    orders = ([0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1])
    shuffled = [bodies(REST, tools=[tools[at] for at in order])[0] for order in orders]
    assert kinds(shuffled) == [("reordered tools", "tools")]
    turned = [dict(reversed(each.items())) for each in tools]
    swapped = [bodies(REST, tools=which)[0] for which in (tools, turned, tools, turned)]
    assert ("reordered tools", "tools") in kinds(swapped)


def test_documents_of_a_request_in_another_order():
    documents = [{"title": name, "text": f"{name} {REST}"} for name in ("one", "two", "three")]
    orders = ([0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1])
    shuffled = [bodies(REST, documents=[documents[at] for at in order])[0] for order in orders]
    assert kinds(shuffled) == [("reordered documents", "documents")]


def test_a_value_that_stays_the_same_for_many_counts_once_for_each():
    names = ["Ann", "Bob", "Cy", "Di"] * 50
    _, (found,) = find(bodies(*(f"The user is {name}. {REST}" for name in names)))
    assert found["kind"] == "user name"
    assert found["requests"] <= 4, "a second request of the same user finds the first one's blocks"


def test_of_a_running_proxy_every_request_that_missed_counts_and_rates_fade():
    finder = Finder(0.0)
    for second in range(600):
        (body,) = bodies(f"It is {second % 24}:00:{second % 60:02}. {REST}")
        finder.look(outline(body), float(second), missed=1000, weight=2.0)
    (found,) = finder.report(600.0)
    assert found["requests_per_day"] == pytest.approx(2 * 86_400, rel=0.05)
    tokens = found["tokens_per_day"] / found["requests_per_day"]
    assert tokens == pytest.approx(len(REST) / 4, rel=0.2)
    (later,) = finder.report(600.0 + 4 * 3600)
    assert later["requests_per_day"] < found["requests_per_day"] / 5
    assert later["seconds_since"] == pytest.approx(4 * 3600 + 1, abs=1)


def test_what_was_missed_bounds_what_is_told_of():
    finder = Finder(0.0)
    for at in range(5):
        (body,) = bodies(f"It is 10:0{at}. {REST}")
        finder.look(outline(body), float(at), missed=10)
    (found,) = finder.report(5.0)
    assert found["tokens_per_day"] == pytest.approx(10 * found["requests_per_day"], rel=0.01)


def test_no_text_is_kept_unless_windows_were_asked_for():
    systems = [f"The user is {name} Zebulon. It is 10:0{at}. {REST}" for at, name in enumerate(("Ann", "Bob", "Cyd", "Dee"))]  # fmt: skip # noqa: E501
    finder = Finder(0.0)
    for body in bodies(*systems):
        finder.look(outline(body), 0.0)
    held = _everything(finder)
    assert not [text for text in held if "Zebulon" in text or "refund" in text or "Ann" in text]
    _, found = find(bodies(*systems), windows=True)
    windows = [each["window"] for each in found]
    assert any("<user name>" in window for window in windows)
    assert any("<timestamp>" in window for window in windows)
    assert not any("Dee" in window or "10:0" in window for window in windows)


def _everything(finder: Finder) -> list[str]:
    """Every text that can be reached from a finder, but for the code's own."""
    seen: set[int] = set()
    texts: list[str] = []
    todo: list[object] = [finder]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        if isinstance(one, str):
            texts.append(one)
        elif isinstance(one, dict):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, (list, tuple, set)):
            todo += one
        else:
            todo += [getattr(one, name) for name in getattr(type(one), "__slots__", ())]
            todo += list(getattr(one, "__dict__", {}).values())
    return texts


def test_hostile_prompts_cannot_grow_it():
    rng, finder = Random(1), Finder(0.0, windows=True)
    for number in range(400):
        words = [f"{rng.getrandbits(40):x}" for _ in range(600)]
        for at in range(9, 600, 10):
            words[at] += "."
        if number % 2:  # the same but for a word in every sentence
            words[1::10] = ["x"] * 60
        finder.look([Segment("prompt", " ".join(words))], float(number))
        finder.look([Segment(f"messages[{number}].content", f"{number}. {REST}")], float(number))
    assert len(finder._exemplars) <= EXEMPLARS
    assert len(finder._owners) <= EXEMPLARS * MOST_PIECES
    assert len(finder._found) <= MOST_BREAKS
    assert len(finder._variants) <= VARIANTS
    assert len(finder._pieces._known) <= REMEMBERED
    long = Pieces().of([Segment("prompt", "a b. " * 50_000)])
    assert len(long) == MOST_PIECES
    assert all(sys.getsizeof(each.piece.words) < 1024 for each in long)


class Counted:
    """A pattern that counts what it is given."""

    def __init__(self, pattern) -> None:
        self.pattern = pattern
        self.characters = 0

    def sub(self, instead, text):
        self.characters += len(text)
        return self.pattern.sub(instead, text)


def _head(text: str) -> list[Segment]:
    return [Segment("prompt", text[:MOST_CHARACTERS])]


HOSTILE = {
    "one word as long as a prompt": lambda at: _head(f"{at}:" + "1:" * MOST_CHARACTERS),
    "a bound in every word": lambda at: _head(f"{at}" + "!a" * MOST_CHARACTERS),
    "short words": lambda at: _head("".join(f"a {n:x} b " for n in range(at, at + 9999))),
    "long pieces, a break in each": lambda at: 16 * _head(f"{at}:" + "1:" * 1000 + " x. "),
    "long tools, a break in each": lambda at: [
        Segment(f"tools[{number}]", text, text)
        for number in range(8)
        for text in [f'{{"{number}":"{at}:{"1:" * 2000}"}}']
    ],
    "sentences": lambda at: _head("".join(f"Stop {n} of line {at} is open on Monday. " for n in range(999))),
}  # fmt: skip


@pytest.mark.parametrize("prompt", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("windows", [False, True])
def test_a_look_masks_no_more_than_it_says_whatever_is_sent(monkeypatch, prompt, windows):
    counted = Counted(pieces._VOLATILE)
    monkeypatch.setattr(pieces, "_VOLATILE", counted)
    finder, most = Finder(0.0, windows=windows), 0
    for number in range(12):  # known and new ones by turns: pieces, breaks and both
        counted.characters = 0
        finder.look(prompt(number % 3 if number % 4 else number), float(number))
        most = max(most, counted.characters)
    assert 0 < most <= (3 if windows else 2) * MOST_MASKED


def test_a_long_prompt_is_learned_a_stretch_at_a_time():
    rule = "Rule {0:x} holds for orders from the {0}th shelf, for those who packed them and for all who ask."
    sentences = " ".join(rule.format(one) for one in range(250))
    finder, tokens = Finder(0.0), []
    for minute in range(12):
        finder.look([Segment("prompt", f"It is 10:{minute:02}. {sentences}")], float(minute), missed=10**6)
        tokens.append(sum(found.total_tokens for found in finder._found.values()))
    (found,) = finder.report(16.0)
    assert found["kind"] == "timestamp"
    seen = [after - before for before, after in pairwise(tokens)]
    assert seen == sorted(seen)
    assert seen[0] < 1.1 * MOST_MASKED / 4
    assert seen[-1] == seen[-2] > 0.9 * len(sentences) / 4


def test_what_is_no_prompt_is_nothing():
    for body in (
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"null",
        b'{"messages": 5}',
        b'{"messages": [5, {"role": "user"}]}',
    ):
        assert outline(body) == []
        assert outline_line(body) == []
    assert outline(b'{"prompt": "' + b"x" * MOST_BYTES + b'"}') == []
    assert (
        sum(len(each.text) for each in outline(b'{"prompt": "' + b"x" * 100_000 + b'"}')) == MOST_CHARACTERS
    )
    assert find([b"", b"\n", b"{"]) == (0, [])
    assert "no place" in page(0, [])


@pytest.mark.parametrize(
    ("body", "paths"),
    [
        ({"prompt": "x"}, ["prompt"]),
        ({"prompt": ["x", "y"]}, ["prompt[0]"]),
        ({"prompt": [1, 2]}, []),
        ({"text": "x"}, ["text"]),
        ({"instructions": "i", "input": "x"}, ["instructions", "input"]),
        ({"system": [{"type": "text", "text": "s"}], "messages": []}, ["system[0].text"]),
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"},
                       {"role": "user", "content": "v"}], "tools": [{}]},
         ["messages[0].content", "tools[0]", "messages[1].content"]),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}, {"type": "text", "text": "u"}]}]},
         ["messages[0].content[1].text"]),
        ({"input": [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]},
         ["input[0].content", "input[1].content"]),
    ],
)  # fmt: skip
def test_paths_are_those_of_the_body(body, paths):
    assert [segment.path for segment in outline(json.dumps(body).encode())] == paths
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
    assert [segment.path for segment in outline_line(json.dumps(line).encode())] == paths


FIELDS = ("messages", "tools", "documents", "system", "input", "prompt", "text")
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(FIELDS, json_values)), max_size=6))
def test_whatever_is_sent_it_goes_on(requests):
    finder = Finder(0.0, windows=True)
    for at, request in enumerate(requests):
        finder.look(outline(json.dumps(request).encode()), float(at))
    finder.report(10.0)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300))
def test_pieces_are_the_whole_text_in_order(text):
    placed = Pieces().of([Segment("p", text)])
    assert "".join(each.text for each in placed) == text
    assert [each.offset for each in placed] == [
        sum(len(each.text) for each in placed[:at]) for at in range(len(placed))
    ]


def test_what_stays_is_not_masked():
    plain = "Write to gpt-4o and be kind to all who ask. A may-be is no date, an e.g. is none."
    assert mask(plain).replace("<counter>", "4") == plain
