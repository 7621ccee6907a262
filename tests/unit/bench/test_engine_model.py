"""The simulated replica's model: what is cached, when tokens come, who waits, and that it always ends."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.engine_model import EngineModel, EngineSpec

SPEC = EngineSpec(
    cache_tokens=1000,
    block_size=10,
    prefill_tokens_per_s=1000.0,
    step_s=0.01,
    step_per_sequence_s=0.001,
    max_seqs=4,
    max_batched_tokens=100,
)


def spec(**changes):
    fields = {name: getattr(SPEC, name) for name in EngineSpec.__slots__}
    return EngineSpec(**{**fields, **changes})


def keys(name, blocks, shared=0):
    """Chained keys: the first `shared` blocks are those of every chain made so."""
    return [100 + i if i < shared else hash((name, i)) for i in range(blocks)]


def run(model, until=1e6):
    events = model.advance(until)
    return {kind: {e.request_id: e for e in events if e.kind == kind} for kind in ("first", "token", "done")}


def test_a_cold_prompt_takes_a_step_and_its_tokens_over_the_rate():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 5), 50, 1)

    first = run(model)["first"]["a"]

    assert first.time == pytest.approx(0.01 + 50 / 1000)
    assert first.cached_tokens == 0


def test_a_repeat_is_cached_but_for_the_last_block_R10():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 5), 50, 1)
    run(model, 10.0)
    model.submit(10.0, "b", keys("a", 5), 50, 1)

    first = run(model)["first"]["b"]

    assert first.cached_tokens == 40
    assert first.time == pytest.approx(10.0 + 0.01 + 10 / 1000)


def test_one_token_more_than_full_blocks_is_cached_whole_R10():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 5), 50, 1)
    run(model, 10.0)
    model.submit(10.0, "b", keys("a", 5), 51, 1)

    assert run(model)["first"]["b"].cached_tokens == 50


def test_prompts_that_arrive_together_share_what_the_first_one_computes():
    model = EngineModel(spec(max_batched_tokens=1000))
    for name in "abc":
        model.submit(0.0, name, keys(name, 6, shared=5), 60, 1)

    cached = {name: event.cached_tokens for name, event in run(model)["first"].items()}

    assert cached == {"a": 0, "b": 50, "c": 50}


def test_long_prompts_are_computed_in_chunks_in_order_of_arrival():
    model = EngineModel(SPEC)
    model.submit(0.0, "long", keys("long", 25), 250, 1)
    model.submit(0.0, "short", keys("short", 1), 10, 1)

    first = run(model)["first"]

    assert first["long"].time == first["short"].time == pytest.approx(3 * 0.01 + 260 / 1000)


def test_a_long_prompt_leaves_room_beside_it_where_its_chunks_are_bounded():
    def first_tokens(**changes):
        model = EngineModel(spec(**changes))
        model.submit(0.0, "long", keys("long", 30), 300, 1)
        model.submit(0.005, "short", keys("short", 5), 50, 1)
        first = run(model)["first"]
        return first["short"].time, first["long"].time

    short, long = first_tokens(longest_chunk=50)
    assert short == pytest.approx(0.06 + 0.11)  # beside the second of six chunks
    assert long == pytest.approx(5 * 0.06 + 0.11)
    short, long = first_tokens()
    assert long == pytest.approx(3 * 0.11)
    assert short == pytest.approx(3 * 0.11 + 0.06)


@pytest.mark.parametrize(("by_priority", "order"), [(True, "acdb"), (False, "abcd")])
def test_who_waits_goes_in_order_of_arrival_or_of_priority_first(by_priority, order):
    model = EngineModel(spec(max_seqs=1, by_priority=by_priority))
    for number, (name, priority) in enumerate([("a", 2), ("b", 2), ("c", 0), ("d", 0)]):
        model.submit(0.001 * number, name, keys(name, 5), 50, 2, priority=priority)
    times = {name: event.time for name, event in run(model)["first"].items()}
    assert "".join(sorted(times, key=times.get)) == order  # what runs already is not put off


def test_decoding_slows_down_with_the_batch():
    def gap(batch):
        model = EngineModel(SPEC)
        for number in range(batch):
            model.submit(0.0, str(number), keys(number, 1), 10, 3)
        times = [e.time for e in model.advance(1e6) if e.request_id == "0" and e.kind != "done"]
        return times[2] - times[1]

    assert gap(1) == pytest.approx(0.011)
    assert gap(4) == pytest.approx(0.014)


def test_each_output_token_is_one_event_and_done_comes_last():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 1), 10, 4)

    assert [event.kind for event in model.advance(1e6)] == ["first", "token", "token", "token", "done"]


def test_a_request_without_output_only_reads_its_prompt():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 2), 20, 0)

    assert [event.kind for event in model.advance(1e6)] == ["done"]
    assert model.output_tokens == 0


def test_more_requests_than_slots_wait():
    model = EngineModel(spec(max_seqs=1))
    model.submit(0.0, "a", keys("a", 1), 10, 2)
    model.submit(0.0, "b", keys("b", 1), 10, 1)
    model.advance(0.0)

    assert (model.running, model.waiting) == (1, 1)
    ends = run(model)
    assert ends["first"]["b"].time > ends["done"]["a"].time


def test_a_request_waits_for_room_in_the_cache_even_if_there_are_slots():
    model = EngineModel(spec(cache_tokens=100))
    model.submit(0.0, "a", keys("a", 6), 60, 20)
    model.submit(0.0, "b", keys("b", 6), 60, 1)
    model.advance(0.05)

    assert (model.running, model.waiting) == (1, 1)
    ends = run(model)
    assert ends["first"]["b"].time > ends["done"]["a"].time


def test_output_is_cached_for_the_next_turn_but_for_its_last_token():
    model = EngineModel(SPEC)
    chain = keys("turns", 6)
    model.submit(0.0, "first", chain[:4], 20, 20)
    run(model, 10.0)
    model.submit(10.0, "second", chain, 60, 1)

    assert run(model)["first"]["second"].cached_tokens == 30


def test_a_full_cache_gives_up_the_tail_of_the_oldest_prompt_first():
    model = EngineModel(spec(cache_tokens=100))
    model.submit(0.0, "old", keys("old", 6), 60, 1)
    run(model, 10.0)
    model.submit(10.0, "new", keys("new", 6), 60, 1)
    run(model, 20.0)
    model.submit(20.0, "again", keys("old", 6), 60, 1)

    assert run(model)["first"]["again"].cached_tokens == 40


def test_cancelling_frees_the_slot_and_the_blocks():
    model = EngineModel(spec(max_seqs=1))
    model.submit(0.0, "gone", keys("gone", 1), 10, 500)
    model.submit(0.0, "next", keys("next", 1), 10, 1)
    model.advance(1.0)
    model.cancel(1.0, "gone")

    events = model.advance(1e6)

    assert [event.request_id for event in events] == ["next", "next"]
    assert events[0].time < 1.1
    assert (model.running, model.waiting, model.kv_usage) == (0, 0, 0.0)


def test_cancelling_one_that_waits_or_has_not_arrived_leaves_no_trace():
    model = EngineModel(spec(max_seqs=1, base_latency_s=1.0))
    model.submit(0.0, "a", keys("a", 1), 10, 1)
    model.cancel(0.5, "a")

    assert model.advance(1e6) == []
    assert model.waiting == 0


def test_the_latency_before_the_scheduler_grows_with_the_prompt_cached_or_not():
    model = EngineModel(spec(base_latency_s=1.0, base_latency_per_token_s=0.01))
    model.submit(0.0, "a", keys("a", 1), 10, 1)

    assert run(model)["first"]["a"].time == pytest.approx(1.0 + 0.1 + 0.01 + 10 / 1000)


def test_a_request_handed_over_late_does_not_start_in_a_busy_past():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 5), 50, 1)
    busy_until = model.advance(1.0)[-1].time
    model.submit(busy_until - 0.03, "late", keys("late", 1), 10, 1)

    assert run(model)["first"]["late"].time == pytest.approx(busy_until + 0.01 + 0.01)


@pytest.mark.parametrize(
    ("prompt", "output", "message"), [(0, 1, "at least one"), (1, -1, "negative"), (990, 12, "do not fit")]
)
def test_requests_that_cannot_be_served_are_refused(prompt, output, message):
    with pytest.raises(ValueError, match=message):
        EngineModel(SPEC).submit(0.0, "a", [], prompt, output)


def test_the_cache_is_not_reset_while_sequences_run():
    model = EngineModel(SPEC)
    model.submit(0.0, "a", keys("a", 5), 50, 5)
    model.advance(0.0)

    assert model.reset_cache() is False
    run(model, 10.0)
    assert model.reset_cache() is True
    model.submit(10.0, "b", keys("a", 5), 50, 1)
    assert run(model)["first"]["b"].cached_tokens == 0


def requests(patience):
    return st.lists(
        st.tuples(
            st.floats(0, 0.3, allow_nan=False),  # seconds since the one before
            st.integers(0, 3),  # which prefix
            st.integers(1, 250),  # prompt tokens
            st.integers(0, 30),  # output tokens
            patience,  # seconds after which it is cancelled
        ),
        max_size=25,
    )


patient = st.none()
impatient = st.one_of(st.none(), st.floats(0, 0.5, allow_nan=False))


def play(model, requests, check):
    """Events, with requests and cancellations at their times."""
    at, plan = 0.0, []
    for number, (gap, prefix, prompt, output, patience) in enumerate(requests):
        at += gap
        chain = [prefix * 1000 + i if i < 8 else hash((number, i)) for i in range((prompt + output) // 10)]
        plan.append((at, 0, str(number), chain, prompt, output))
        if patience is not None:
            plan.append((at + patience, 1, str(number), chain, prompt, output))
    events = []
    for when, cancels, name, chain, prompt, output in sorted(plan):
        events += model.advance(when)
        check()
        if cancels:
            model.cancel(when, name)
        else:
            model.submit(when, name, chain, prompt, output)
    return events + model.advance(1e6)


@settings(max_examples=120, deadline=None)
@given(requests=requests(impatient))
def test_it_always_ends_with_nothing_held_and_never_overbooks_its_blocks(requests):
    model = EngineModel(spec(cache_tokens=400, max_seqs=3))

    def check():
        assert model.cache.pinned + model._reserved <= model.cache.blocks
        assert model.cache.pinned + model.cache.evictable <= model.cache.blocks
        assert model.running <= 3

    events = play(model, requests, check)

    assert (model.next_event(), model.running, model.waiting) == (None, 0, 0)
    assert (model.cache.pinned, model._reserved) == (0, 0)
    assert [e.time for e in events] == sorted(e.time for e in events)
    for number, (_, _, prompt, output, patience) in enumerate(requests):
        mine = [event for event in events if event.request_id == str(number)]
        if patience is None:
            assert [event.kind for event in mine].count("done") == 1
            assert len(mine) == output + 1
        assert all(event.cached_tokens < prompt and event.cached_tokens % 10 == 0 for event in mine)


@settings(max_examples=80, deadline=None)
@given(requests=requests(patient))
def test_running_quiet_stretches_in_one_go_changes_nothing_but_the_token_events(requests):
    step_by_step = EngineModel(spec(cache_tokens=3000))
    in_one_go = EngineModel(spec(cache_tokens=3000), every_token=False)

    expected = [e for e in play(step_by_step, requests, lambda: None) if e.kind != "token"]
    actual = play(in_one_go, requests, lambda: None)

    def seen(events):
        return sorted((e.request_id, e.kind, round(e.time, 9), e.cached_tokens) for e in events)

    assert seen(actual) == seen(expected)
    assert in_one_go.output_tokens == step_by_step.output_tokens
