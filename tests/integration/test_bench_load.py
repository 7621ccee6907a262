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


async def command(*arguments):
    """`python -m bench load` in a thread, as it runs a loop of its own."""
    return await asyncio.to_thread(main, [*SMALL, *arguments])


@pytest.fixture
def no_signals(monkeypatch):
    """Signal handlers belong to the main thread, which the test's own loop has."""
    monkeypatch.setattr("uvloop.Loop.add_signal_handler", lambda *_: None)


async def test_the_command_writes_the_promised_file(tmp_path, no_signals):
    async with serve(SPEC, ports=(0, 0)) as replicas:
        urls = ",".join(one.url for one in replicas)
        status = await command("--url", urls, "--rate", "50", "--duration", "0.5", "--out", str(tmp_path))

    result = json.loads((tmp_path / "result.json").read_text())
    assert status == 0
    assert (result["schema"], result["simulated"]) == (1, True)
    assert sum(group["requests"] for group in result["runs"][0]["groups"].values()) == 25
    assert sum(result["runs"][0]["replicas"].values()) == 25


async def test_random_prompts_that_hit_fail_the_run(no_signals, capsys):
    """A replica that reports hits where there can be none, as one that shares its cache with others would."""

    async def lying(request):
        body = await request.json()
        usage = {"prompt_tokens": 100, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 50}}
        chunks = [{"choices": [{"delta": {"content": "x"}}]}, {"choices": [], "usage": usage}]
        assert body["stream_options"]["include_usage"]
        text = "".join(f"data: {json.dumps(chunk, separators=(',', ':'))}\n\n" for chunk in chunks)
        return web.Response(text=text + "data: [DONE]\n\n", content_type="text/event-stream")

    runner, url = await stand_in(lying)
    async with serve(SPEC) as (one,):
        status = await command(
            "--url", url, "--engines", one.url, "--rate", "50", "--duration", "0.2", "--workload", "random"
        )
    await runner.cleanup()

    assert status == 1
    assert "random prompts hit the cache" in capsys.readouterr().out


async def test_an_engine_that_is_not_there_is_one_line_and_status_1(no_signals, capsys):
    runner, url = await stand_in(nothing)
    await runner.cleanup()

    assert await command("--url", url) == 1
    assert url.removeprefix("http://127.0.0.1:") in capsys.readouterr().err
