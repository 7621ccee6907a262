"""Load over HTTP: what is sent, what is measured, what makes a run not count, and what Ctrl-C keeps."""

import asyncio
import json
from dataclasses import replace

import aiohttp
import pytest
from aiohttp import web

from bench import fleet
from bench.engine import serve
from bench.engine_prompt import EnginePrompt
from bench.load import Record, main, measure, send
from bench.plan import prepare
from bench.profiles import EngineSpec
from bench.workloads import Shape, generate
from tests.support.eventually import eventually

SPEC = EngineSpec(
    name="test", cache_tokens=4096, prefill_tokens_per_s=1e5, step_s=0.001, step_per_sequence_s=0.0
)
PROMPT = EnginePrompt()
SHAPE = Shape(rate=100, requests=30, groups=2, prefix=200, question=20, output=4)


def plan(workload="mixed", seed=1, **shape):
    arrivals = generate(workload, Shape(**{**{n: getattr(SHAPE, n) for n in Shape.__slots__}, **shape}), seed)
    return prepare(arrivals, PROMPT, model="simulated", block_size=16)


async def nothing(_request):
    return web.Response()


async def stand_in(answer):
    """A server that answers chat with `answer(request)`, and nothing else."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{runner.addresses[0][1]}"


async def test_records_hold_what_the_replica_reported():
    async with serve(SPEC) as (one,):
        requests = plan("shared", groups=1)
        records = await send(requests, [one.url])

    assert len(records) == 30
    assert all(record.error is None and record.status == 200 for record in records)
    assert sorted(r.prompt_tokens for r in records) == sorted(p.prompt_tokens for p in requests)
    assert {record.output_tokens for record in records} == {4}
    assert all(0 < r.ttft <= r.e2e and r.tpot >= 0 for r in records)
    assert sum(record.cached_tokens for record in records) == one.replica.model.cached_tokens > 0


async def test_several_urls_take_turns():
    async with serve(SPEC, ports=(0, 0, 0)) as replicas:
        urls = [one.url for one in replicas]
        records = await send(plan(), urls)

    assert [sum(record.replica == url for record in records) for url in urls] == [10, 10, 10]


async def test_latency_counts_from_the_time_a_request_was_due():
    """Requests that were due five seconds ago go out at once, and are five seconds late already."""
    async with serve(SPEC) as (one,):
        late = [replace(planned, due=planned.due - 5) for planned in plan(requests=5)]
        records = await send(late, [one.url])

    assert len(records) == 5
    assert all(min(record.lag, record.ttft, record.e2e) > 4 for record in records)


async def test_requests_go_out_though_none_is_answered():
    arrived, released = [], asyncio.Event()

    async def blocked(request):
        arrived.append(request)
        await released.wait()
        return web.Response(text='data: {"choices":[{"delta":{"content":"x"}}]}\n\ndata: [DONE]\n\n')

    runner, url = await stand_in(blocked)
    sending = asyncio.ensure_future(send(plan(requests=20), [url]))
    await eventually(lambda: len(arrived) == 20)
    released.set()
    records = await sending
    await runner.cleanup()

    assert len(records) == 20
    assert all(record.error is None and record.cached_tokens is None for record in records)


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (500, "broken", "status 500: broken"),
        (200, 'data: {"choices":[{"delta":{"content":"x"}}]}\n\n', "without [DONE]"),
        (200, "data: [DONE]\n\n", "no token"),
    ],
)
async def test_what_goes_wrong_is_a_record_with_an_error(status, text, error):
    async def answer(_request):
        return web.Response(status=status, text=text)

    runner, url = await stand_in(answer)
    (record,) = await send(plan(requests=1), [url])
    await runner.cleanup()

    assert error in record.error


async def test_a_refused_connection_is_a_record_with_an_error():
    runner, url = await stand_in(nothing)
    await runner.cleanup()
    (record,) = await send(plan(requests=1), [url])

    assert "ClientConnectorError" in record.error
    assert record.status is None


async def test_stopping_keeps_what_was_measured():
    async with serve(SPEC) as (one,):
        stop = asyncio.Event()

        def enough(_record: Record) -> None:
            stop.set()

        records = await send(plan(rate=20, requests=2000), [one.url], stop=stop, on_record=enough)

    assert 1 <= len(records) < 100


async def test_a_measured_window_starts_cold_and_has_its_ceiling():
    async with serve(SPEC, ports=(0, 0)) as replicas:
        urls = [one.url for one in replicas]
        requests = plan("shared", seed=1)
        engines = [await facts(url) for url in urls]
        measured = await measure(requests, requests, urls=urls, engines=engines)

    cold = [record for record in measured.records if record.cached_tokens == 0]
    assert len(cold) >= 2
    assert 0.5 < measured.ceilings["shared"] < 1
    assert engines[0].cache_tokens == 4096
    assert engines[0].simulated


async def facts(url):
    async with aiohttp.ClientSession() as session:
        return await fleet.facts(session, url)


SMALL = ("--prefix", "100", "--question", "20", "--output", "2", "--warm-up", "0.1")


@pytest.fixture
def command(tmp_path, monkeypatch, request):
    """`python -m bench load` in a thread, as it runs a loop of its own; only one test wants its pictures."""
    if "promised" not in request.node.name:
        monkeypatch.setattr("bench.load_plots.draw", lambda *_: [])

    async def run(*arguments):
        return await asyncio.to_thread(main, [*SMALL, "--out", str(tmp_path), *arguments])

    return run


@pytest.fixture
def no_signals(monkeypatch):
    """Signal handlers belong to the main thread, which the test's own loop has."""
    monkeypatch.setattr("uvloop.Loop.add_signal_handler", lambda *_: None)


async def test_the_command_writes_the_promised_file(tmp_path, command, no_signals):
    async with serve(SPEC, ports=(0, 0)) as replicas:
        urls = ",".join(one.url for one in replicas)
        status = await command("--url", urls, "--rate", "50", "--duration", "1", "--cool-down", "0.2")

    result = json.loads((tmp_path / "result.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    (run,) = result["runs"]
    assert status == 0
    assert (result["schema"], result["simulated"]) == (1, True)
    measured = run["all"]["requests"]
    assert sum(group["requests"] for group in run["groups"].values()) == measured == len(lines) > 25
    assert sum(run["replicas"].values()) == measured
    assert run["cross_check"]["agree"]
    assert run["cross_check"]["answers_prompt_tokens"] > sum(line["prompt_tokens"] for line in lines)
    assert {line["number"] for line in lines} == set(range(measured))
    shared = run["groups"]["shared"]
    for kind in ("ttft", "tpot", "itl", "e2e"):
        figures = shared[kind]
        assert {"p50", "p90", "p95", "p99", "mean", "count", "intervals"} == set(figures)
        assert all(figures["intervals"][name][0] <= figures[name] for name in ("p50", "mean"))
    assert shared["queue"] is None  # there was no proxy to tell
    assert shared["waterfall"]["available"] is None
    assert shared["waterfall"]["ceiling"] >= shared["hit_rate"] > 0
    assert "simulated" in (tmp_path / "summary.md").read_text().lower()
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png;base64,") == 3
    assert 'src="http' not in page


async def test_a_closed_loop_has_so_many_at_a_time(tmp_path, command, no_signals):
    async with serve(SPEC) as (one,):
        arguments = ("--url", one.url, "--workload", "shared", "--concurrency", "4", "--requests", "40")
        status = await command(*arguments)

    result = json.loads((tmp_path / "result.json").read_text())
    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert status == 0
    assert len(lines) == 40
    assert "Closed loop, 4 at a time" in result["load"]["mode"]
    begun = sorted((line["due"], 1) for line in lines) + [(line["due"] + line["e2e"], -1) for line in lines]
    running = [sum(step for _, step in sorted(begun)[:n]) for n in range(len(begun))]
    assert max(running) == 4


async def test_random_prompts_that_hit_fail_the_run(command, no_signals, capsys):
    """A replica that reports hits where there can be none, as one that shares its cache with others would."""

    async def lying(request):
        body = await request.json()
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 50}}
        assert body["stream_options"]["include_usage"]
        return web.Response(text=stream(usage), content_type="text/event-stream")

    runner, url = await stand_in(lying)
    async with serve(SPEC) as (one,):
        status = await command(
            "--url", url, "--engines", one.url, "--rate", "50", "--duration", "0.2", "--workload", "random"
        )
    await runner.cleanup()

    assert status == 1
    assert "random prompts hit the cache" in capsys.readouterr().out


def stream(usage=None):
    """An answer of two tokens."""
    chunks = [{"choices": [{"delta": {"content": "x"}}]}] * 2 + (
        [{"choices": [], "usage": usage}] if usage else []
    )
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)  # with blanks, as some servers write
    return text + "data: [DONE]\n\n"


async def test_an_engine_that_is_not_there_is_one_line_and_status_1(command, no_signals, capsys):
    runner, url = await stand_in(nothing)
    await runner.cleanup()

    assert await command("--url", url) == 1
    assert url.removeprefix("http://127.0.0.1:") in capsys.readouterr().err


async def test_an_endpoint_that_went_down_is_in_the_report(tmp_path, command, no_signals):
    runner, url = await stand_in(nothing)
    await runner.cleanup()

    assert await command("--url", url, "--model", "m", "--rate", "50", "--duration", "0.2") == 1
    (run,) = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert run["all"]["error_rate"] == 1
    assert set(run["all"]["error_kinds"]) == {"ClientConnectorError"}
    assert run["all"]["good"] == run["goodput"] == 0
    assert "ClientConnectorError" in (tmp_path / "summary.md").read_text()


async def test_one_that_never_answers_ends_in_time_and_is_named(tmp_path, command, no_signals):
    async def silent(_request):
        await asyncio.Event().wait()

    runner, url = await stand_in(silent)
    arguments = ("--url", url, "--model", "m", "--rate", "50", "--duration", "0.1", "--timeout", "0.2")
    status = await command(*arguments, "--warm-up", "0")
    await runner.cleanup()

    (run,) = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert status == 1
    assert set(run["all"]["error_kinds"]) == {"timeout"}


async def test_a_tenth_of_500s_is_counted_and_not_averaged_away(tmp_path, command, no_signals):
    seen = iter(range(10**6))

    async def tenth(_request):
        if next(seen) % 10 == 0:
            return web.Response(status=500, text="broken")
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 0}}
        return web.Response(text=stream(usage))

    runner, url = await stand_in(tenth)
    arguments = ("--url", url, "--model", "m", "--concurrency", "1", "--requests", "40", "--warm-up", "0")
    status = await command(*arguments)
    await runner.cleanup()

    (run,) = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert status == 1
    assert run["all"]["error_kinds"] == {"status 500": 4}
    assert run["all"]["error_rate"] == pytest.approx(0.1)
    assert sum(group["ttft"]["count"] for group in run["groups"].values()) == 36


async def test_shed_requests_stand_apart_from_failed_ones(tmp_path, command, no_signals):
    async def full(_request):
        return web.Response(status=429, headers={"Retry-After": "1"}, text="later")

    runner, url = await stand_in(full)
    await command("--url", url, "--model", "m", "--requests", "10", "--rate", "100", "--warm-up", "0")
    await runner.cleanup()

    (run,) = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert (run["all"]["shed_rate"], run["all"]["error_rate"]) == (1, 0)


async def test_answers_without_usage_are_said_to_be(tmp_path, command, no_signals):
    async def terse(_request):
        return web.Response(text=stream())

    runner, url = await stand_in(terse)
    status = await command(
        "--url", url, "--model", "m", "--requests", "10", "--rate", "100", "--warm-up", "0"
    )
    await runner.cleanup()

    (run,) = json.loads((tmp_path / "result.json").read_text())["runs"]
    assert status == 0
    assert run["all"]["without_usage"] == 10
    assert run["all"]["hit_rate"] is None
    assert any("told no usage" in caution for caution in run["cautions"])
    assert run["all"]["requests"] == sum(one["ttft"]["count"] for one in run["groups"].values())


async def test_a_primed_window_starts_warm(tmp_path, command, no_signals):
    async with serve(SPEC) as (one,):
        arguments = ("--url", one.url, "--workload", "shared", "--groups", "2", "--requests", "20")
        await command(*arguments, "--rate", "100", "--prime")

    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    assert min(line["cached_tokens"] for line in lines) > 50


async def test_a_trace_is_sent_so_that_equal_ids_are_cached(tmp_path, command, no_signals):
    trace = tmp_path / "trace.jsonl"
    rows = [([1, 2], 120), ([1, 2, 3], 180), ([1, 2, 4], 190), ([9], 60)]
    trace.write_text(
        "".join(
            json.dumps({"timestamp": 100 * i, "input_length": n, "output_length": 3, "hash_ids": ids}) + "\n"
            for i, (ids, n) in enumerate(rows)
        )
    )
    async with serve(SPEC) as (one,):
        status = await command("--url", one.url, "--trace", f"mooncake:{trace}", "--id-tokens", "64")

    lines = [json.loads(line) for line in (tmp_path / "requests.jsonl").read_text().splitlines()]
    cached = [line["cached_tokens"] for line in sorted(lines, key=lambda line: line["number"])]
    assert status == 0
    assert cached[0] == cached[3] == 0
    assert min(cached[1], cached[2]) >= 64


@pytest.mark.parametrize("field", ["timestamp", "input_length", "hash_ids"])
async def test_a_trace_that_lacks_a_field_is_named_with_its_line(
    tmp_path, command, no_signals, capsys, field
):
    row = {"timestamp": 0, "input_length": 60, "output_length": 3, "hash_ids": [1]}
    trace = tmp_path / "trace.jsonl"
    trace.write_text(json.dumps({name: row[name] for name in row if name != field}) + "\n")
    async with serve(SPEC) as (one,):
        status = await command("--url", one.url, "--trace", f"mooncake:{trace}", "--id-tokens", "64")

    assert status == 2
    assert f"line 1, field {field}: missing" in capsys.readouterr().err


async def test_secrets_do_not_get_into_the_result(tmp_path, command, no_signals):
    async with serve(SPEC) as (one,):
        secrets = ("--api-key", "hunter2", "--admin-token=swordfish")
        await command("--url", one.url, "--requests", "3", "--rate", "100", *secrets)

    text = (tmp_path / "result.json").read_text()
    assert "hunter2" not in text
    assert "swordfish" not in text
