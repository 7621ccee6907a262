"""The account of a run: failures stand beside latencies, nothing unknown is a zero, and pages show it all."""

import pytest

from bench import account, summary
from bench.account import Slo, bucket
from bench.endpoint import Counters, Samples
from bench.lifecycle import Window, primes
from bench.load_files import command_line
from bench.peers_cases import CASES, chosen, on_real
from bench.peers_table import against, page, runs
from bench.plan import Planned
from bench.record import Record


def record(number, group="shared", **fields):
    one = Record(group, number / 10, 0.001, number, 1000, status=200)
    known = {"ttft": 0.1, "tpot": 0.01, "e2e": 0.3, "gaps": [0.01] * 4, "prompt_tokens": 1000}
    for name, value in (known | {"cached_tokens": 500, "output_tokens": 5, "replica": "a"} | fields).items():
        setattr(one, name, value)
    return one


def window(records, *, counted=None, stages=None, notes=()):
    plan = [Planned(r.due, r.group, b"", (), r.expected_tokens, 5) for r in records]
    n = len(records)
    return Window(plan, records, [], 10.0, [600] * n, [800] * n, counted or {}, stages or {}, list(notes))


def test_goodput_counts_whole_answers_in_time():
    slow, dear = record(1, ttft=2.0), record(2, tpot=0.2)
    broken = record(3, error="timeout: no whole answer")
    one = account.run("p", window([record(0), slow, dear, broken]), Slo(1.0, 0.05))

    assert one["goodput"] == pytest.approx(0.1)
    assert one["throughput"] == pytest.approx(0.3)
    assert one["all"]["good"] == 0.25
    assert one["slo"] == {"ttft": 1.0, "tpot": 0.05}


def test_failures_are_counted_by_kind_and_shed_ones_apart():
    records = [record(0), record(1, error="status 500: x"), record(2, error="status 500: y")]
    records += [record(3, error="status 429: later", shed=True)]
    one = account.run("p", window(records), Slo())

    assert one["all"]["error_kinds"] == {"status 500": 2, "status 429": 1}
    assert (one["all"]["errors"], one["all"]["error_rate"], one["all"]["shed_rate"]) == (3, 0.5, 0.25)
    assert one["groups"]["shared"]["ttft"]["count"] == 1
    assert "2 x status 500" in account.problems(one)[0]


def test_the_waterfall_tells_what_nobody_told_apart_from_zero():
    stages = {("shared", "prompt"): 2000.0, ("shared", "available"): 1400.0, ("shared", "routed"): 1200.0}
    told = account.run("p", window([record(0), record(1)], stages=stages), Slo())["all"]["waterfall"]
    assert told == {"unlimited": 0.8, "ceiling": 0.6, "available": 0.7, "routed": 0.6, "reported": 0.5}

    silent = account.run("p", window([record(0, cached_tokens=None)]), Slo())["all"]["waterfall"]
    assert (silent["available"], silent["reported"]) == (None, None)


@pytest.mark.parametrize(("hits", "agree"), [(1000.0, True), (1030.0, False)])
def test_answers_are_checked_against_the_engines_counters(hits, agree):
    counted = {"http://a": Counters(2000.0, hits)}
    one = account.run("p", window([record(0), record(1)], counted=counted), Slo())

    assert one["cross_check"]["agree"] is agree
    assert any("engines counted" in caution for caution in account.cautions(one)) is not agree


def test_an_engine_without_counters_is_no_agreement_and_no_disagreement():
    assert account.cross_check(window([record(0)], counted={"http://a": None})) is None
    assert account.cross_check(window([record(0)])) is None


def test_load_is_compared_by_what_replicas_computed():
    counted = {"http://a": Counters(3000.0, 0.0), "http://b": Counters(1500.0, 500.0)}
    one = account.load_by_replica(window([record(0), record(1, replica="b")], counted=counted))

    assert one["uncached_tokens"] == {"a": 3000.0, "b": 1000.0}
    assert one["uncached_spread"] == 1.5
    assert one["uncached_jain"] == pytest.approx(0.8)
    assert one["replicas"] == {"a": 1, "b": 1}


def test_hits_and_misses_have_their_own_times():
    records = [record(i, ttft=0.05) for i in range(5)] + [record(9, ttft=0.9, cached_tokens=100)]
    told = account.by_cache(records)
    assert (told["hit"]["count"], told["hit"]["p50"]) == (5, 0.05)
    assert (told["miss"]["count"], told["miss"]["p50"]) == (1, 0.9)


@pytest.mark.parametrize(
    ("tokens", "name"), [(0, "0k-1k"), (1023, "0k-1k"), (1024, "1k-4k"), (65535, "16k-64k"), (10**6, "64k+")]
)
def test_prompts_are_told_apart_by_length(tokens, name):
    assert bucket(tokens) == name


def test_what_a_reader_has_to_know_is_said():
    late = [record(i, lag=0.2) for i in range(10)]
    one = account.run("p", window(late, notes=["cache not emptied"]), Slo())
    told = account.cautions(one)

    assert any("200 ms late" in caution for caution in told)
    assert "cache not emptied" in told
    assert not any("late" in caution for caution in account.cautions(one, open_loop=False))


def test_a_page_shows_every_group_and_is_escaped():
    one = account.run("<b>", window([record(0), record(1, "random", cached_tokens=0)]), Slo())
    one |= {"problems": ["<script>"], "cautions": ["care"]}
    machine = {"cores": 2, "cpu": "x", "load_average": [0.1]}
    result = {
        "workload": {"name": "mixed"},
        "simulated": True,
        "runs": [one],
        "commit": "c",
        "machine": machine,
    }
    parts = summary.sections(result)
    text, html = summary.markdown(parts), summary.html(parts, [("p", "QUJD")])

    assert "SIMULATED" in text
    assert "| random | 1 |" in text
    assert "<script>" not in html.replace("<style>", "")
    assert "&lt;script&gt;" in html
    assert "data:image/png;base64,QUJD" in html


def test_prefixes_that_nobody_shares_are_not_primed():
    plan = [Planned(i, "shared", b"", keys, 64, 1) for i, keys in enumerate([(1, 2), (1, 3), (7, 8)])]
    assert [p.keys for p in primes(plan)] == [(1, 2)]


def test_prometheus_text_is_read_as_far_as_it_makes_sense():
    page = Samples.parse('# HELP x\nx_total{a="b"} 2\nx_total{a="c"} 3.5\nbad line\nx_total{a="d"} much\n')
    assert page.total(("x_total",)) == 5.5
    assert page.total(("y",)) is None
    assert page.labels("x_total") == {"a": "b"}


def test_secrets_are_left_out_of_the_command():
    told = command_line("load", ["--url", "http://a", "--api-key", "k", "--admin-token=t", "--rate", "3"])
    assert told == "python -m bench load --url http://a --api-key ... --admin-token=... --rate 3"


def peers(ours, theirs):
    return {("shared", "warmroute"): ours, ("shared", "other"): theirs}


def test_routers_are_compared_on_the_requests_that_both_answered():
    ours = [[record(i, ttft=0.1 + i / 1000) for i in range(60)]]
    theirs = [[record(i, ttft=0.2 + i / 500, cached_tokens=400) for i in range(60)]]
    theirs[0][3].error = "timeout: x"
    told = against(peers(ours, theirs), "shared", "other")

    assert told["ttft_p50"]["change"] == pytest.approx(1.0)
    assert told["hit_rate"]["change"] == pytest.approx(-0.1)
    assert told["hit_rate"]["interval"][1] < 0
    assert against(peers(ours, theirs), "shared", "warmroute") is None


def test_the_page_says_where_a_router_is_ahead_of_ours():
    ours = [[record(i, ttft=0.2) for i in range(60)]] * 2
    theirs = [[record(i, ttft=0.1, cached_tokens=800) for i in range(60)]] * 2
    figures = {"requests": 60, "errors": 0, "ceiling": 0.9, "spread": 1.1, "cpu_ms_per_request": 1.0}
    times = dict.fromkeys(("p50", "p90", "p95", "p99", "mean"), 0.1)
    windows = [
        {"case": "shared", "router": name, "memory_mib": 1.0, "hit_rate": rate, "ttft": times, **figures}
        for name, rate in (("warmroute", 0.5), ("other", 0.8))
        for _ in range(2)
    ]
    rows = runs(CASES, windows, peers(ours, theirs))
    machine = {"cores": 2, "cpu": "x", "load_average": [0.1]}
    routers = {"warmroute": {"package": None, "note": "n"}, "other": {"package": "other==1", "note": "n"}}
    workload = {"cases": {"shared": {"what": "w"}}, "repeats": 2, "duration": 1.0}
    text = page(
        {
            "simulated": True,
            "runs": rows,
            "workload": workload,
            "machine": machine,
            "commit": "c",
            "command": "x",
        }
        | {"routers": routers, "left_out": {"third": "it ended\nlog"}}
    )

    assert "`other` hits 30.0 points more" in text
    assert "**+30.0pp" in text
    assert "`third`: it ended" in text
    assert "SIMULATED" in text


def test_cases_are_chosen_by_name():
    assert [case.name for case in chosen("hot,four")] == ["hot", "four"]
    assert len(chosen("all")) == len({case.name for case in CASES}) >= 11
    with pytest.raises(ValueError, match="unknown case nope"):
        chosen("nope")


def test_on_real_replicas_prompts_are_shorter_and_what_needs_simulated_ones_is_left_out():
    real = {case.name: on_real(case) for case in CASES}
    assert real["replica"] is None
    assert real["small"] is None
    assert (real["shared"].shape.prefix, real["shared"].rate) == (1200, 4.0)
    assert real["four"].proxies == 4
