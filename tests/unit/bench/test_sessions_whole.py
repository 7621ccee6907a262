"""How even sessions that stay whole can be, in order and in hindsight."""

from bench.profiles import profile
from bench.sessions_whole import computed, in_hindsight, in_order
from bench.simulation import prepare
from bench.workloads import Shape, generate

WORK = [("a", 1), ("b", 1), ("c", 6), ("a", 1), ("d", 3), ("b", 4)]


def test_in_order_a_session_goes_where_least_was_done_when_it_begins():
    assert in_order(WORK, 2) == [1 + 6 + 1, 1 + 3 + 4]
    assert in_order(WORK, 3) == [1 + 1 + 0, 1 + 3 + 4, 6]


def test_in_hindsight_the_longest_go_first():
    assert sorted(in_hindsight(WORK, 2)) == [8, 8]
    assert sorted(in_hindsight(WORK, 3)) == [5, 5, 6]


def test_what_a_session_said_before_is_computed_once():
    spec = profile("h100x2-32b")
    shape = Shape(requests=60, prefix=160, question=100, output=40, turns=(4, 4))
    jobs, _ = prepare(generate("multiturn", shape, 3), spec)
    work = computed(jobs, spec.block_size)
    assert [session for session, _ in work] == [job.arrival.session for job in jobs]
    assert all(0 < tokens <= job.tokens for (_, tokens), job in zip(work, jobs, strict=True))
    assert sum(tokens for _, tokens in work) < 0.75 * sum(job.tokens for job in jobs)
