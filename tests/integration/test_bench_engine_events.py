"""The simulated replica's KV events over sockets: what a router sees of a cache, and faults on demand."""

import asyncio
import json
from array import array

import aiohttp
import pytest

from bench.engine_events import DIALECTS
from bench.engine_prompt import block_keys
from bench.profiles import EngineSpec
from tests.support.eventually import eventually
from tests.support.keying import BLOCK, TOKENIZER, chat, keyer, parsed
from tests.support.replicas import FAST, Subscriber, replica_processes, replicas

SMALL = EngineSpec(
    name="small", cache_tokens=160, prefill_tokens_per_s=1e6, step_s=0.0005, step_per_sequence_s=0.0
)
"""10 blocks of 16."""
SLOW = EngineSpec(
    name="slow", cache_tokens=4096, prefill_tokens_per_s=1e6, step_s=0.02, step_per_sequence_s=0.0
)


@pytest.fixture
async def session():
    async with aiohttp.ClientSession() as session:
        yield session


async def complete(session, one, prompt, tokens=1, **more):
    body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **more}
    async with session.post(f"{one.url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def call(session, one, method, path, **body):
    async with session.request(method, one.url + path, json=body or None) as response:
        return response.status, json.loads(await response.text())


def ids(first, blocks=2, more=0):
    """Token ids of whole blocks, and some."""
    return list(range(first, first + 16 * blocks + more))


def stored(subscriber):
    return [event for event in subscriber.events if event["type"] == "BlockStored"]


async def publish(session, one, count, first=100):
    """`count` batches, each of one request that nobody sent before."""
    for number in range(count):
        await complete(session, one, ids(first + 100 * number))


async def test_a_prompts_blocks_and_then_the_answers_come_as_vllm_sends_them(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        prompt = ids(100, blocks=3, more=5)
        answer = await complete(session, one, prompt, tokens=30)
        await subscriber.until(lambda: len(stored(subscriber)) == 3)
        first, second, third = stored(subscriber)
        topic = f"kv@127.0.0.1:{one.port}@simulated".encode()
        assert subscriber.seqs == [0, 1, 2]
        assert {message.topic for message in subscriber.messages} == {topic}
        keys = block_keys(array("I", prompt), 16, model="simulated")
        assert first["block_hashes"] == keys
        assert (first["parent_block_hash"], first["token_ids"]) == (None, prompt[:48])
        assert second["parent_block_hash"] == keys[-1]
        assert second["token_ids"][:5] == prompt[48:]
        assert len(second["token_ids"]) == len(third["token_ids"]) == 16
        assert third["parent_block_hash"] == second["block_hashes"][0]
    words = one.replica.prompt.decode([*second["token_ids"][5:], *third["token_ids"]])
    assert answer["choices"][0]["text"].startswith(words)


async def test_what_is_cached_is_not_stored_again_and_what_goes_on_names_its_parent(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        await complete(session, one, ids(100))
        await complete(session, one, ids(100))
        await complete(session, one, ids(100, blocks=3, more=1))
        await subscriber.until(lambda: len(stored(subscriber)) == 2)
        first, second = stored(subscriber)
    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert second["token_ids"] == ids(100, blocks=3)[32:]


async def test_following_the_events_gives_what_the_engine_has(session):
    async with replicas(spec=SMALL) as (one,), Subscriber(one.feed) as subscriber:
        for number in (1, 2, 3, 1, 4, 2, 5):
            await complete(session, one, ids(100 * number, blocks=3, more=2), tokens=8)
        cache = one.replica.model.cache
        await eventually(lambda: cache.pinned == 0)
        await subscriber.until(lambda: len(subscriber.messages) == one.feed.next_seq)
        known = set()
        for event in subscriber.events:
            if event["type"] == "BlockStored":
                assert event["parent_block_hash"] in {None, *known}
                known |= set(event["block_hashes"])
            else:
                assert set(event["block_hashes"]) <= known
                known -= set(event["block_hashes"])
        assert known == set(cache._evictable)
        assert known


async def test_an_eviction_comes_before_the_store_it_made_room_for_in_the_same_batch(session):
    async with replicas(spec=SMALL) as (one,), Subscriber(one.feed) as subscriber:
        await complete(session, one, ids(100, blocks=5))
        await complete(session, one, ids(300, blocks=9))
        await subscriber.until(lambda: len(subscriber.messages) == 2)
        first, second = (message.events for message in subscriber.messages)
    kinds = [event["type"] for event in second]
    assert kinds == ["BlockRemoved"] * 4 + ["BlockStored"]
    assert [event["block_hashes"] for event in second[:-1]] == [
        [one_hash] for one_hash in first[0]["block_hashes"][:0:-1]
    ]


async def test_sglang_removes_in_one_event_and_stores_64_at_a_time(session):
    spec = EngineSpec(
        name="t", cache_tokens=1600, prefill_tokens_per_s=1e6, step_s=0.0005, step_per_sequence_s=0.0
    )
    async with replicas(dialect="sglang-maps", spec=spec) as (one,), Subscriber(one.feed) as subscriber:
        await complete(session, one, ids(100, blocks=50))
        await complete(session, one, ids(5000, blocks=90))
        await subscriber.until(lambda: len(subscriber.messages) == 2)
        removed, *stores = subscriber.messages[1].events
    assert (removed["type"], len(removed["block_hashes"])) == ("BlockRemoved", 40)
    assert [len(event["block_hashes"]) for event in stores] == [64, 26]
    assert stores[1]["parent_block_hash"] == stores[0]["block_hashes"][-1]
    assert all(-(1 << 63) <= number < 1 << 63 for number in stores[0]["block_hashes"])
    assert any(number < 0 for number in stores[0]["block_hashes"])


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_the_proxys_own_tokens_are_those_in_the_events(session, dialect):
    body = chat({"role": "user", "content": "Is it warm or cold? " * 20}, max_tokens=1)
    async with replicas(dialect=dialect, model="m") as (one,), Subscriber(one.feed) as subscriber:
        async with session.post(f"{one.url}/v1/chat/completions", json=body) as response:
            assert response.status == 200
        await subscriber.until(lambda: subscriber.messages)
        (event,) = subscriber.events
    assert one.replica.prompt.directory == TOKENIZER
    expected = keyer().token_ids(parsed(body)).tolist()
    tokens = event[3] if isinstance(event, list) else event["token_ids"]
    assert len(tokens) >= 3 * BLOCK
    assert tokens == expected[: len(tokens)]
    assert len(expected) - len(tokens) < BLOCK


async def test_vllm_tells_of_a_reset_only_with_the_next_batch(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        await complete(session, one, ids(100))
        assert await call(session, one, "POST", "/reset_prefix_cache") == (200, {"success": True})
        assert one.feed.next_seq == 1
        await complete(session, one, ids(300))
        await subscriber.until(lambda: len(subscriber.messages) == 2)
        assert [event["type"] for event in subscriber.messages[1].events] == [
            "AllBlocksCleared", "BlockStored",
        ]  # fmt: skip
        await complete(session, one, ids(500))
        await subscriber.until(lambda: len(subscriber.messages) == 3)
        assert [event["type"] for event in subscriber.messages[2].events] == ["BlockStored"]


@pytest.mark.parametrize("path", ["/reset_prefix_cache", "/flush_cache"])
async def test_sglang_tells_of_a_reset_at_once(session, path):
    async with replicas(dialect="sglang-arrays") as (one,), Subscriber(one.feed) as subscriber:
        await complete(session, one, ids(100))
        async with session.post(one.url + path) as response:
            assert response.status == 200
        await subscriber.until(lambda: len(subscriber.messages) == 2)
        assert subscriber.messages[1].events == [["AllBlocksCleared"]]


async def test_a_reset_that_is_refused_is_not_told(session):
    async with replicas(dialect="sglang-maps", spec=SLOW) as (one,):
        body = {"prompt": ids(100), "max_tokens": 1000, "ignore_eos": True, "stream": True}
        async with session.post(f"{one.url}/v1/completions", json=body):
            await eventually(lambda: one.feed.next_seq == 1)
            assert await call(session, one, "POST", "/reset_prefix_cache") == (200, {"success": False})
        assert b"AllBlocksCleared" not in b"".join(payload for _, payload in one.feed._buffer)


async def test_salted_blocks_say_so_in_each_engines_way(session):
    for dialect, where in (
        ("vllm", lambda event: event["extra_keys"]),
        ("vllm-arrays", lambda event: event[8]),
        ("sglang-maps", lambda event: event["cache_salt"]),
        ("sglang-arrays", lambda event: event[7]["cache_salt"]),
    ):
        async with replicas(dialect=dialect) as (one,), Subscriber(one.feed) as subscriber:
            await complete(session, one, ids(100), cache_salt="A")
            await subscriber.until(lambda: subscriber.messages)
            assert where(subscriber.events[0]) == ([["A"], None] if dialect[0] == "v" else "A")


async def test_an_adapter_has_blocks_of_its_own_and_its_name_in_the_events(session):
    async with replicas(adapters=("tuned",)) as (one,), Subscriber(one.feed) as subscriber:
        for name in ("simulated", "tuned", "tuned"):
            answer = await complete(session, one, ids(100), model=name)
            assert answer["model"] == name
        _, models = await call(session, one, "GET", "/v1/models")
        await subscriber.until(lambda: len(subscriber.messages) == 2)
        base, tuned = subscriber.events
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 16
    assert (base["lora_name"], tuned["lora_name"]) == (None, "tuned")
    assert base["token_ids"] == tuned["token_ids"]
    assert not set(base["block_hashes"]) & set(tuned["block_hashes"])
    assert tuned["extra_keys"] == [["tuned"], ["tuned"]]
    assert [(card["id"], card["parent"]) for card in models["data"]] == [
        ("simulated", None),
        ("tuned", "simulated"),
    ]


async def test_sglang_does_not_tell_an_adapter_from_its_base(session):
    async with (
        replicas(dialect="sglang-maps", adapters=("tuned",), spec=SMALL) as (one,),
        Subscriber(one.feed) as subscriber,
    ):
        for name in ("simulated", "tuned"):
            await complete(session, one, ids(100), model=name)
        await complete(session, one, ids(300, blocks=9, more=15))
        await subscriber.until(lambda: len(subscriber.messages) == 3)
    base, tuned, removed, _ = subscriber.events
    assert base == tuned
    assert sorted(removed["block_hashes"]) == sorted(base["block_hashes"] * 2)


# ---- replay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dialect", "topics"), [("vllm", True), ("vllm-arrays", False), ("sglang-maps", False)]
)
async def test_a_replay_has_everything_from_its_start_on_and_an_end(session, dialect, topics):
    async with replicas(dialect=dialect) as (one,), Subscriber(one.feed) as subscriber:
        await publish(session, one, 5)
        await subscriber.until(lambda: len(subscriber.messages) == 5)
        for start in (0, 3, 5, 900):
            found = await subscriber.replay(start)
            assert [message.seq for message in found] == list(range(start, 5))
            assert [m.payload for m in found] == [m.payload for m in subscriber.messages[start:]]
            assert {message.topic for message in found} <= ({one.feed.topic.encode()} if topics else {None})


async def test_a_full_replay_buffer_loses_its_oldest(session):
    async with replicas(buffer_steps=3) as (one,), Subscriber(one.feed) as subscriber:
        await publish(session, one, 5)
        assert [message.seq for message in await subscriber.replay()] == [2, 3, 4]


async def test_a_long_replay_is_whole(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        for _ in range(900):
            one.feed.publish(b"\x93\xcb" + bytes(8) + b"\x90\x00")
        assert len(await subscriber.replay()) == 900
        await subscriber.until(lambda: len(subscriber.messages) == 900)


async def test_a_replay_can_come_late_or_not_at_all_or_have_lost_its_buffer(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        await publish(session, one, 2)
        one.feed.faults.replay_delay_s = 0.05
        late = asyncio.ensure_future(subscriber.replay())
        await publish(session, one, 1, first=1000)
        assert [message.seq for message in await late][:2] == [0, 1]
        one.feed.faults.set(mute_replay=True, replay_delay_s=0.0)
        with pytest.raises(TimeoutError):
            await subscriber.replay(within=0.1)
        one.feed.faults.mute_replay = False
        assert (await call(session, one, "POST", "/simulated/forget_replay"))[0] == 200
        assert await subscriber.replay() == []
        await publish(session, one, 1, first=2000)
        assert [message.seq for message in await subscriber.replay()] == [3]


# ---- what goes wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "seen"),
    [
        ({"lose_every": 3}, [0, 1, 3, 4]),
        ({"lose_range": [1, 3]}, [0, 4, 5]),
        ({"swap_every": 2}, [0, 2, 1, 4, 3]),
        ({"duplicate_every": 3}, [0, 1, 2, 2, 3, 4, 5, 5]),
        ({"delay_s": 0.02}, [0, 1, 2, 3, 4, 5]),
    ],
    ids=["lost every", "lost range", "swapped", "twice", "late"],
)
async def test_a_faulty_feed_and_a_replay_that_has_it_all(session, fault, seen):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        status, told = await call(session, one, "POST", "/simulated/faults", **fault)
        assert (status, told | fault) == (200, told)
        await publish(session, one, 6)
        await subscriber.until(lambda: len(subscriber.messages) >= len(seen))
        assert subscriber.seqs == seen
        assert [message.seq for message in await subscriber.replay()] == list(range(6))


async def test_a_delay_that_ends_does_not_change_the_order(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        one.feed.faults.delay_s = 0.05
        await publish(session, one, 2)
        one.feed.faults.delay_s = 0.0
        await publish(session, one, 2, first=1000)
        await subscriber.until(lambda: len(subscriber.messages) == 4)
        assert subscriber.seqs == [0, 1, 2, 3]


async def test_a_batch_can_be_sent_again(session):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        await publish(session, one, 2)
        assert await call(session, one, "POST", "/simulated/resend", seq=0) == (200, {"sent": True})
        assert await call(session, one, "POST", "/simulated/resend", seq=9) == (200, {"sent": False})
        await subscriber.until(lambda: len(subscriber.messages) == 3)
        assert subscriber.seqs == [0, 1, 0]


async def test_an_unknown_fault_is_refused(session):
    async with replicas() as (one,):
        status, told = await call(session, one, "POST", "/simulated/faults", explode=True)
        assert status == 400
        assert "lose_every" in told["error"]["message"]


async def started_at(session, one):
    async with session.get(f"{one.url}/metrics") as response:
        page = await response.text()
    lines = [line for line in page.splitlines() if line.startswith("process_start_time_seconds ")]
    return float(lines[0].split()[1])


@pytest.mark.parametrize("over_http", [False, True])
async def test_a_restart_is_a_new_epoch_on_the_same_ports(session, over_http):
    async with replicas() as (one,), Subscriber(one.feed) as subscriber:
        await publish(session, one, 3)
        before, ports = await started_at(session, one), (one.port, one.feed.port, one.feed.replay_port)
        if over_http:
            assert (await call(session, one, "POST", "/simulated/restart"))[0] == 200
            await eventually(lambda: one.replica.started != before)
        else:
            await one.restart()

        async def back():
            try:
                return await started_at(session, one) > before
            except aiohttp.ClientError:
                return False

        await eventually(back, "the replica is back")
        assert (one.port, one.feed.port, one.feed.replay_port) == ports
        answer = await complete(session, one, ids(100))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert one.replica.model.prompt_tokens == 32
        assert [message.seq for message in await subscriber.replay()] == [0]
        await eventually(lambda: one.feed.subscribers == 1, "the subscriber is back")
        await publish(session, one, 1, first=1000)
        await subscriber.until(lambda: subscriber.seqs[-1] == 1)
        assert subscriber.seqs[:3] == [0, 1, 2]


async def test_a_restart_ends_what_was_running(session):
    async with replicas(spec=SLOW) as (one,):
        body = {"prompt": ids(100), "max_tokens": 1000, "ignore_eos": True, "stream": True}
        async with session.post(f"{one.url}/v1/completions", json=body) as response:
            await response.content.readany()
            await one.restart(0.02)
            with pytest.raises(aiohttp.ClientError):
                await response.content.read()
        assert one.replica.in_flight == one.replica.model.running == 0
        await complete(session, one, ids(100))


async def test_a_stopped_replica_refuses_connections(session):
    async with replicas(2) as (one, other):
        await one.stop()
        with pytest.raises(aiohttp.ClientError):
            await complete(session, one, ids(100))
        await complete(session, other, ids(100))


# ---- where the feed is -------------------------------------------------------------------------------------


async def test_vllm_tells_its_event_sources(session):
    async with replicas(2, buffer_steps=500) as both:
        assert len({port for one in both for port in (one.feed.port, one.feed.replay_port)}) == 4
        for one in both:
            assert await call(session, one, "GET", "/kv_event_sources") == (
                200,
                {
                    "0": {
                        "enable_kv_cache_events": True,
                        "publisher": "zmq",
                        "endpoint": f"tcp://*:{one.feed.port}",
                        "replay_endpoint": f"tcp://*:{one.feed.replay_port}",
                        "buffer_steps": 500,
                        "hwm": 100000,
                        "max_queue_size": 100000,
                        "topic": f"kv@127.0.0.1:{one.port}@simulated",
                    }
                },
            )
            assert (await call(session, one, "GET", "/server_info"))[0] == 404


async def test_sglang_tells_them_in_its_server_info(session):
    async with replicas(dialect="sglang-maps") as (one,):
        status, told = await call(session, one, "GET", "/server_info")
        assert status == 200
        assert told["kv_events"] == {
            "publisher": "zmq",
            "endpoint_host": "*",
            "endpoint_port_base": one.feed.port,
            "topic": one.feed.topic,
            "block_size": 16,
            "dp_size": 1,
        }
        config = json.loads(told["kv_events_config"])
        assert config["replay_endpoint"] == f"tcp://*:{one.feed.replay_port}"
        assert (told["page_size"], told["max_total_num_tokens"]) == (16, FAST.cache_tokens)
        _, models = await call(session, one, "GET", "/v1/models")
        assert models["data"][0]["owned_by"] == "sglang"
        assert (await call(session, one, "GET", "/kv_event_sources"))[0] == 404


async def test_replicas_in_a_process_publish_too(session, tmp_path):
    log = tmp_path / "engines.log"
    faults = ("--kv-events-faults", '{"lose_every": 2}', "--profile", "cpu")
    async with replica_processes(2, log, arguments=faults) as process:
        assert len(process.urls) == 2
        for url in process.urls:
            async with session.get(f"{url}/kv_event_sources") as response:
                assert (await response.json())["0"]["endpoint"].startswith("tcp://*:")
            async with session.post(f"{url}/simulated/faults", json={}) as response:
                assert (await response.json())["lose_every"] == 2
