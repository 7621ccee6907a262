"""The simulated replica over HTTP: vLLM's shapes, a real cache, and a free slot when the client is gone."""

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest

from bench.engine import serve
from bench.profiles import EngineSpec
from tests.support.eventually import eventually

SPEC = EngineSpec(
    name="test",
    cache_tokens=4096,
    prefill_tokens_per_s=1e6,
    step_s=0.0005,
    step_per_sequence_s=0.0,
    max_seqs=8,
)
SLOW = EngineSpec(
    name="slow", cache_tokens=4096, prefill_tokens_per_s=1e6, step_s=0.02, step_per_sequence_s=0.0, max_seqs=1
)
STREAM = {"stream": True, "stream_options": {"include_usage": True}}
CHAT = {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 3, "ignore_eos": True}


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def url():
    async with serve(SPEC) as (one,):
        yield one.url


async def post(session, url, path, body, **headers):
    async with session.post(url + path, json=body, headers=headers) as response:
        return response.status, await response.json(), response.headers


async def stream(session, url, path, body):
    async with session.post(url + path, json=body) as response:
        assert response.status == 200
        assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        text = await response.text()
    events = [event.removeprefix("data: ") for event in text.split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


async def scrape(session, url):
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    return {
        line.rsplit(" ", 1)[0].split("{")[0]: float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if not line.startswith("#") and "_by_" not in line and "success" not in line
    }


async def test_a_chat_stream_has_vllms_chunks_byte_for_byte(session, url):
    async with session.post(f"{url}/v1/chat/completions", json={**CHAT, **STREAM}) as response:
        text = await response.text()
    known = '"id":"ID","object":"chat.completion.chunk","created":0,"model":"simulated"'
    text = re.sub(r'"id":"chatcmpl-[0-9a-f]{16}"', '"id":"ID"', text)
    text = re.sub(r'"created":\d+', '"created":0', text)
    words = re.findall(r'"content":"( \w+)"', text)
    first, *middle, last = [f'{{"content":"{word}"}},"logprobs":null,"finish_reason":' for word in words]

    assert len(words) == 3
    role = '"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
    expected = [f'{{{known},"choices":[{{"index":0,{role},"prompt_token_ids":null,"prompt_text":null}}']
    expected += [
        f'{{{known},"choices":[{{"index":0,"delta":{part}null,"token_ids":null}}]}}'
        for part in (first, *middle)
    ]
    usage = (
        '{"prompt_tokens":14,"total_tokens":17,"completion_tokens":3,'
        '"prompt_tokens_details":{"cached_tokens":0,"created_cache_tokens":0}}'
    )
    expected += [
        f'{{{known},"choices":[{{"index":0,"delta":{last}"length","stop_reason":null,"token_ids":null}}]}}',
        f'{{{known},"choices":[],"usage":{usage},"system_fingerprint":"vllm-0.32.0-simulated"}}',
        "[DONE]",
    ]
    assert text == "".join(f"data: {event}\n\n" for event in expected)


async def test_a_completion_stream_has_vllms_chunks(session, url):
    events = await stream(session, url, "/v1/completions", {"prompt": "hi", "max_tokens": 2, **STREAM})

    assert list(events[0]["choices"][0]) == [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids",
    ]  # fmt: skip
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None, "length"]
    assert events[-1]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


async def test_usage_rides_on_every_chunk_if_asked(session, url):
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}, "stream": True}
    events = await stream(session, url, "/v1/chat/completions", {**CHAT, **options})

    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


async def test_without_include_usage_there_is_none(session, url):
    events = await stream(session, url, "/v1/chat/completions", {**CHAT, "stream": True})

    assert not any("usage" in event for event in events)
    assert all(event["choices"] for event in events)


async def test_a_repeat_reports_what_was_cached_but_never_the_last_block_R10(session, url):
    ids = list(range(100, 164))
    for expected in (0, 48):
        _, body, _ = await post(session, url, "/v1/completions", {"prompt": ids, "max_tokens": 1})
        assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == expected
    _, body, _ = await post(session, url, "/v1/completions", {"prompt": [*ids, 7], "max_tokens": 1})
    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == 64


async def test_the_next_turn_finds_the_answer_in_the_cache(session, url):
    messages = [{"role": "user", "content": "tell me a story " * 10}]
    _, body, _ = await post(
        session, url, "/v1/chat/completions", {"messages": messages, "max_tokens": 64, "ignore_eos": True}
    )
    before = body["usage"]["prompt_tokens"]
    answer = body["choices"][0]["message"]
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "go on"}]
    _, body, _ = await post(session, url, "/v1/chat/completions", {"messages": messages, "max_tokens": 1})

    assert body["usage"]["prompt_tokens_details"]["cached_tokens"] == (before + 64 - 1) // 16 * 16


async def test_salts_and_models_do_not_share(session, url):
    prompt = "the same words " * 40
    cached = []
    for salt in (None, None, "A", "A", "B"):
        body = {"prompt": prompt, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        _, answer, _ = await post(session, url, "/v1/completions", body)
        cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [tokens > 0 for tokens in cached] == [False, True, False, True, False]


async def test_resetting_the_cache_makes_it_cold(session, url):
    body = {"prompt": "words " * 100, "max_tokens": 1}
    await post(session, url, "/v1/completions", body)
    _, answer, _ = await post(session, url, "/reset_prefix_cache", {})
    assert answer == {"success": True}
    _, answer, _ = await post(session, url, "/v1/completions", body)

    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_each_choice_and_each_prompt_is_a_sequence(session, url):
    _, body, _ = await post(
        session, url, "/v1/completions", {"prompt": ["a b c", "d e f"], "n": 2, "max_tokens": 2}
    )

    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert len({choice["text"] for choice in body["choices"]}) > 1
    assert body["usage"]["completion_tokens"] == 8
    events = await stream(session, url, "/v1/completions", {"prompt": "a", "n": 3, "max_tokens": 2, **STREAM})
    assert {event["choices"][0]["index"] for event in events if event["choices"]} == {0, 1, 2}


async def test_the_same_request_gets_the_same_answer_from_every_replica_of_a_seed(session):
    async with serve(SPEC, ports=(0, 0), seed=5) as replicas, serve(SPEC, seed=6) as (other,):
        texts = []
        for one in (*replicas, other):
            _, body, _ = await post(session, one.url, "/v1/chat/completions", {**CHAT, "max_tokens": 20})
            texts.append(body["choices"][0]["message"]["content"])

    assert texts[0] == texts[1] != texts[2]


async def test_an_answer_ends_by_itself_unless_told_otherwise(session, url):
    body = {"messages": CHAT["messages"], "max_tokens": 1000}
    _, natural, _ = await post(session, url, "/v1/chat/completions", body)
    _, forced, _ = await post(
        session, url, "/v1/chat/completions", {**body, "ignore_eos": True, "max_tokens": 250}
    )

    assert natural["choices"][0]["finish_reason"] == "stop"
    assert natural["usage"]["completion_tokens"] < 250
    assert forced["choices"][0]["finish_reason"] == "length"
    assert forced["usage"]["completion_tokens"] == 250


async def test_the_request_id_is_in_the_answer(session, url):
    _, body, _ = await post(session, url, "/v1/chat/completions", CHAT, **{"X-Request-Id": "my-req-1"})

    assert body["id"] == "chatcmpl-my-req-1"


async def test_cached_tokens_can_be_left_out_like_vllms_default(session):
    async with serve(SPEC, report_cached=False) as (one,):
        _, body, _ = await post(session, one.url, "/v1/chat/completions", CHAT)
        assert body["usage"]["prompt_tokens_details"] is None
        events = await stream(session, one.url, "/v1/chat/completions", {**CHAT, **STREAM})
        assert "prompt_tokens_details" not in events[-1]["usage"]


@pytest.mark.parametrize("streams", [True, False])
async def test_a_client_that_leaves_frees_its_slot_and_blocks(session, streams):
    async with serve(SLOW) as (one,):
        body = {**CHAT, "max_tokens": 2000, "stream": streams}
        request = asyncio.ensure_future(post(session, one.url, "/v1/chat/completions", body))
        await eventually(lambda: one.replica.model.running == 1)
        request.cancel()

        await eventually(lambda: one.replica.in_flight == 0 and one.replica.model.running == 0)
        assert one.replica.model.kv_usage == 0.0
        status, _, _ = await post(session, one.url, "/v1/chat/completions", CHAT)
        assert status == 200


async def test_one_slot_queues_the_second_request_and_the_metrics_say_so(session):
    async with serve(SLOW) as (one,):
        body = {**CHAT, "max_tokens": 2000, "stream": True}
        async with session.post(f"{one.url}/v1/chat/completions", json=body):
            second = asyncio.ensure_future(post(session, one.url, "/v1/chat/completions", body))
            await eventually(lambda: one.replica.in_flight == 2)
            samples = await scrape(session, one.url)
            second.cancel()

    assert (samples["vllm:num_requests_running"], samples["vllm:num_requests_waiting"]) == (1, 1)
    assert 0 < samples["vllm:kv_cache_usage_perc"] < 1


async def test_metrics_have_vllms_names_and_count_tokens(session, url):
    for _ in range(2):
        await post(session, url, "/v1/completions", {"prompt": list(range(100)), "max_tokens": 5})
    samples = await scrape(session, url)

    assert samples["vllm:prefix_cache_queries_total"] == 200
    assert samples["vllm:prefix_cache_hits_total"] == samples["vllm:prompt_tokens_cached_total"] == 96
    assert samples["vllm:generation_tokens_total"] == 10
    assert samples["process_start_time_seconds"] > 1e9
    async with session.get(f"{url}/metrics") as response:
        text = await response.text()
    assert re.search(r'vllm:cache_config_info\{.*block_size="16",num_gpu_blocks="256"', text)
    for line in text.splitlines():
        assert line.startswith("# TYPE ") or re.fullmatch(r"[a-z_:]+(\{[^}]*\})? \S+", line)


async def test_models_say_vllm_the_tokenizer_and_the_context(session, url):
    async with session.get(f"{url}/v1/models") as response:
        model = (await response.json())["data"][0]

    assert (model["owned_by"], model["id"], model["max_model_len"]) == ("vllm", "simulated", 4096)
    assert (Path(model["root"]) / "tokenizer.json").is_file()


async def test_tokenize_and_back(session, url):
    _, body, _ = await post(session, url, "/tokenize", {"prompt": "Say hi", "return_token_strs": True})
    assert body["count"] == len(body["tokens"]) == len(body["token_strs"])
    _, back, _ = await post(session, url, "/detokenize", {"tokens": body["tokens"]})
    assert back == {"prompt": "Say hi"}
    _, chat, _ = await post(session, url, "/tokenize", {"messages": CHAT["messages"]})
    _, answer, _ = await post(session, url, "/v1/chat/completions", CHAT)
    assert chat["count"] == answer["usage"]["prompt_tokens"]


ERRORS = [
    (
        {"model": "nope", "prompt": "x"},
        404,
        "The model `nope` does not exist. Valid aliases: simulated.",
        "model",
    ),
    ({"prompt": [1] * 5000}, 400, "This model's maximum context length is 4096 tokens.", "input_tokens"),
    ({"prompt": "x", "max_tokens": 99999}, 400, "max_tokens=99999 cannot be greater", "max_tokens"),
    ({}, 400, "1 validation error:\n  {'type': 'missing', 'loc': 'body.prompt'", "body.prompt"),
    ({"prompt": "x", "temperature": "hot"}, 400, "1 validation error", "body.temperature"),
    ({"prompt": "x", "cache_salt": ""}, 400, "Parameter 'cache_salt' must be a non-empty", "cache_salt"),
    ({"prompt": "\ud800"}, 400, "the prompt is not valid Unicode", None),
    ({"prompt": []}, 400, "1 validation error", "body.prompt"),
    ({"prompt": [1, -1]}, 400, "1 validation error", "body.prompt"),
]


@pytest.mark.parametrize(("body", "status", "message", "param"), ERRORS)
@pytest.mark.parametrize("streams", [True, False])
async def test_what_vllm_refuses_is_refused_in_its_shape(session, url, body, status, message, param, streams):
    got, answer, _ = await post(session, url, "/v1/completions", {**body, "stream": streams})

    assert got == status
    assert answer["error"]["message"].startswith(message)
    assert (answer["error"]["param"], answer["error"]["code"]) == (param, status)


async def test_other_refusals(session, url):
    status, body, _ = await post(session, url, "/v1/chat/completions", {"messages": []})
    assert (status, body["error"]["type"]) == (400, "BadRequestError")
    status, body, _ = await post(
        session, url, "/v1/completions", {"prompt": "x"}, **{"X-data-parallel-rank": "5"}
    )
    assert body["error"]["message"] == "data_parallel_rank 5 is out of range [0, 1)."
    async with session.post(f"{url}/v1/completions", data=b'{"prompt": ') as response:
        assert response.status == 400
    headers = {"Content-Type": "application/json"}
    async with session.post(f"{url}/v1/completions", data=b'{"prompt": ', headers=headers) as response:
        body = await response.json()
    assert (response.status, body["error"]["param"]) == (400, "body.11")
    async with session.get(f"{url}/v1/completions") as response:
        assert (response.status, await response.json()) == (405, {"detail": "Method Not Allowed"})
        assert "POST" in response.headers["Allow"]
    async with session.get(f"{url}/nope") as response:
        assert (response.status, await response.json()) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize(
    ("path", "body", "cached"),
    [
        ("/v1/responses", {"input": "w " * 99, "max_output_tokens": 2}, r'"cached_tokens":(\d+)'),
        ("/v1/messages", {"messages": CHAT["messages"], "system": "w " * 99, "max_tokens": 2},
         r'"cache_read_input_tokens":(\d+)'),
        ("/generate", {"text": "w " * 99, "sampling_params": {"max_new_tokens": 2}},
         r'"cached_tokens":(\d+)'),
    ],
)  # fmt: skip
async def test_other_dialects_answer_and_report_what_was_cached(session, url, path, body, cached, streams):
    reported = []
    for _ in range(2):
        async with session.post(url + path, json={**body, "stream": streams}) as response:
            assert response.status == 200
            reported.append(int(re.findall(cached, await response.text())[-1]))

    assert reported[0] == 0
    assert reported[1] > 90


async def test_embeddings_and_rerank_read_prompts_and_write_nothing(session, url):
    _, body, _ = await post(session, url, "/v1/embeddings", {"input": ["a b", "c"]})
    assert [entry["index"] for entry in body["data"]] == [0, 1]
    assert body["usage"]["completion_tokens"] == 0
    _, body, _ = await post(session, url, "/v1/rerank", {"query": "q", "documents": ["a", "b", "c"]})
    assert sorted(entry["index"] for entry in body["results"]) == [0, 1, 2]


async def test_every_answer_says_that_it_is_simulated(session, url):
    for method, path in (("GET", "/health"), ("GET", "/nope"), ("POST", "/v1/completions")):
        async with session.request(method, url + path) as response:
            assert "simulated" in response.headers["Server"]
