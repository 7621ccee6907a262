"""Q: classes, the queue, and what engines are told of priority, over real sockets."""

import asyncio
import json
from contextlib import AsyncExitStack

import pytest

from proxy.app import Proxy
from tests.support import dialect
from tests.support.client import Client, exchange
from tests.support.eventually import eventually, turns
from tests.support.fixtures import counts, idle, in_flight, serving, total
from tests.support.http import Request, request
from tests.support.upstream import Exchange, Upstream

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
PRIORITY = "X-Warmroute-Priority"
VLLM, SGLANG, PLAIN = "vllm", "sglang", "plain"


def admission(proxy: Proxy):
    return proxy._dispatcher._hop.admission


async def queued(proxy: Proxy, count: int) -> None:
    await eventually(lambda: admission(proxy).waiting == count, f"{count} wait")
    assert sum(admission(proxy).queued().values()) == count


class Gate:
    """A behaviour that holds every answer until it is let go, one at a time."""

    def __init__(self) -> None:
        self.held: list[asyncio.Event] = []
        self.seen: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        self.seen.append(json.loads(exchange.request.body).get("user", ""))
        event = asyncio.Event()
        self.held.append(event)
        held = asyncio.ensure_future(event.wait())
        gone = asyncio.ensure_future(exchange.gone.wait())
        await asyncio.wait((held, gone), return_when=asyncio.FIRST_COMPLETED)
        for task in (held, gone):
            task.cancel()
        if event.is_set():
            await Upstream.reply(exchange)

    def open(self) -> None:
        """Let the one that has been held longest go."""
        self.held.pop(0).set()


async def ask(
    stack: AsyncExitStack, proxy: Proxy, user: str, priority: str | None = None, **fields
) -> Client:
    client = await stack.enter_async_context(await Client.connect(proxy.port))
    headers = [] if priority is None else [(PRIORITY, priority)]
    await client.send(request("POST", CHAT, dialect.chat(user=user, **fields), headers))
    return client


def one_at_a_time(upstream: Upstream, gate: Gate, **settings):
    upstream.behaviour = gate
    limits = {"concurrency": 1, **settings.pop("limits", {})}
    return serving(upstream, limits=limits, **settings)


async def test_a_higher_class_goes_first_and_the_wait_is_told(upstream):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate) as proxy:
        first = await ask(stack, proxy, "first")
        await upstream.arrived()
        waiting = {}
        for number, name in enumerate(("batch", "standard", "interactive")):
            waiting[name] = await ask(stack, proxy, name, name)
            await queued(proxy, number + 1)
        for _ in range(4):
            await eventually(lambda: gate.held)
            gate.open()
        answer = await first.response("POST")
        assert float(answer.one("x-warmroute-queue-ms")) == 0.0
        for client in waiting.values():
            answer = await client.response("POST")
            assert (answer.status, answer.one("x-warmroute-attempts")) == (200, b"1")
            assert float(answer.one("x-warmroute-queue-ms")) > 0.0
        assert gate.seen == ["first", "interactive", "standard", "batch"]
        assert await total(proxy, "warmroute_queue_seconds_count", priority="batch") == 1
        await idle(proxy)


async def test_a_full_queue_and_one_that_moves_too_slowly_are_429_with_a_time_to_come_back(upstream):
    gate = Gate()
    rules = {"queue": {"standard": 1}, "wait": {"batch": 0.05}}
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate, priority=rules) as proxy:
        await ask(stack, proxy, "first")
        await upstream.arrived()
        await ask(stack, proxy, "second")
        await queued(proxy, 1)
        late = exchange(proxy.port, "POST", CHAT, dialect.chat(), [(PRIORITY, "batch")])
        for refused in (await exchange(proxy.port, "POST", CHAT, dialect.chat()), await late):
            assert (refused.status, refused.error["code"]) == (429, "overloaded")
            assert 1 <= int(refused.one("retry-after")) <= 120
            assert refused.one("x-request-id")
        assert admission(proxy).shed == {("standard", "full"): 1, ("batch", "late"): 1}
        await counts(proxy, "warmroute_requests_total", 2, code="429")
        assert len(upstream.requests) == 1
        gate.open()
        await upstream.arrived(2)
        gate.open()
        await idle(proxy)
        await queued(proxy, 0)


def orders(*upstreams: Upstream):
    """A vLLM and an SGLang that schedule by priority, and one that does not."""
    spec = [
        {"name": VLLM, "engine": "vllm", "priority": "low_first"},
        {"name": SGLANG, "engine": "sglang", "priority": "high_first"},
        {"name": PLAIN, "engine": "vllm"},
    ]
    return [{"url": each.url, **one} for each, one in zip(upstreams, spec, strict=True)]


def received(upstream: Upstream) -> tuple[Request, dict]:
    return upstream.last, json.loads(upstream.last.body)


@pytest.mark.parametrize("own", [{}, {"priority": 100}, {"priority": "x"}], ids=["none", "number", "text"])
@pytest.mark.parametrize(
    ("name", "low", "high"), [("interactive", 0, 2), ("standard", 1, 1), ("batch", 2, 0)]
)
async def test_Q02_each_engine_is_told_the_class_in_its_own_order(upstreams, name, low, high, own):
    replicas = await upstreams(3)
    async with serving(*replicas, replicas=orders(*replicas), policy="round_robin") as proxy:
        body = dialect.chat(**own, seed=12345678901234567890)
        for _ in replicas:
            headers = [(PRIORITY, name), ("X-Vllm-Priority", "-99")]
            assert (await exchange(proxy.port, "POST", CHAT, body, headers)).status == 200
        vllm, sglang, plain = (received(replica) for replica in replicas)
        assert (vllm[1]["priority"], sglang[1]["priority"]) == (low, high)
        assert "priority" not in plain[1]
        for head, said in (vllm, sglang, plain):
            assert {**said, "priority": 0} == {**json.loads(body), "priority": 0}
            assert not [field for field in head.headers if field[0].lower() == b"x-vllm-priority"]
        if not own:
            assert plain[0].body == body


async def test_Q02_several_sequences_carry_no_priority(upstreams):
    replicas = await upstreams(3)
    async with serving(*replicas, replicas=orders(*replicas), policy="round_robin") as proxy:
        for _ in replicas:
            await exchange(proxy.port, "POST", CHAT, dialect.chat(n=2, priority=5), [(PRIORITY, "batch")])
        assert all("priority" not in received(replica)[1] for replica in replicas)


async def test_Q02_where_no_engine_schedules_by_priority_bodies_are_left_alone(upstream):
    async with serving(upstream) as proxy:
        body = dialect.chat(priority=7)
        await exchange(proxy.port, "POST", CHAT, body, [(PRIORITY, "batch"), ("X-Vllm-Priority", "3")])
        assert upstream.last.body == body
        assert (b"X-Vllm-Priority", b"3") in upstream.last.headers


BAD = ["999999", "-5", "1.5", "abc", "", "NaN", "u=1", "interactive, batch", "\xff", "x" * 4000, "0", "None"]


@pytest.mark.parametrize("value", BAD)
async def test_Q03_a_class_that_does_not_exist_is_the_default(upstream, value):
    async with serving(upstream) as proxy:
        raw = request("POST", CHAT, dialect.chat(), [(PRIORITY, "@")]).replace(b"@", value.encode("latin-1"))
        async with await Client.connect(proxy.port) as client:
            await client.send(raw)
            assert (await client.response("POST")).status == 200
        await counts(proxy, "warmroute_requests_total", 1, priority="standard")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([("Priority", "u=0, i")], "standard"),
        ([("Priority", "u=7"), (PRIORITY, "interactive")], "interactive"),
        ([(PRIORITY, "batch"), (PRIORITY, "interactive")], "interactive"),
        ([(PRIORITY, "interactive"), (PRIORITY, "top")], "standard"),
        ([(PRIORITY, " Batch ")], "batch"),
        ([("x-warmroute-priority", "batch")], "batch"),
    ],
)
async def test_Q03_the_last_of_our_header_counts_and_rfc_9218_is_passed_on(upstream, headers, expected):
    async with serving(upstream) as proxy:
        assert (await exchange(proxy.port, "POST", CHAT, dialect.chat(), headers)).status == 200
        await counts(proxy, "warmroute_requests_total", 1, priority=expected)
        sent = {name.lower() for name, _ in upstream.last.headers}
        assert (b"priority" in sent) == (headers[0][0] == "Priority")
        assert b"x-warmroute-priority" not in sent


@pytest.mark.parametrize("priority", ["9", [1], {"a": 1}, None, 1e99, -(2**70)])
async def test_Q03_a_strange_priority_in_a_body_is_the_engines_to_judge(upstream, priority):
    async with serving(upstream) as proxy:
        body = dialect.chat(priority=priority)
        assert (await exchange(proxy.port, "POST", CHAT, body)).status == 200
        assert upstream.last.body == body


@pytest.mark.parametrize("leave", ["reset", "finish"])
async def test_Q04_who_leaves_the_queue_is_never_sent_and_frees_its_place(upstream, leave):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate) as proxy:
        await ask(stack, proxy, "R1")
        await upstream.arrived()
        second = await ask(stack, proxy, "R2")
        await queued(proxy, 1)
        third = await ask(stack, proxy, "R3")
        await queued(proxy, 2)
        getattr(second, leave)()
        await queued(proxy, 1)
        gate.open()
        await upstream.arrived(2)
        await queued(proxy, 0)
        gate.open()
        assert (await third.response("POST")).status == 200
        assert gate.seen == ["R1", "R3"]
        await idle(proxy)


async def test_Q04_a_crowd_that_leaves_leaves_nothing(upstream):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate) as proxy:
        await ask(stack, proxy, "R1")
        await upstream.arrived()
        crowd = [await ask(stack, proxy, "crowd", ("batch", "interactive")[i % 2]) for i in range(680)]
        await queued(proxy, 680)
        for client in crowd:
            client.reset()
        await queued(proxy, 0)
        assert not any(mine.lanes or mine.tickets for mine in admission(proxy).classes)
        assert gate.seen == ["R1"]
        gate.open()
        await idle(proxy)
        gate.held.clear()
        last = await ask(stack, proxy, "last")
        await upstream.arrived(2)
        gate.open()
        assert (await last.response("POST")).status == 200
        assert gate.seen == ["R1", "last"]


async def test_Q05_who_leaves_in_the_very_step_in_which_it_is_let_in_gives_its_place_back(upstream):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate) as proxy:
        before = asyncio.all_tasks()
        await ask(stack, proxy, "R1")
        await upstream.arrived()
        others = asyncio.all_tasks()
        await ask(stack, proxy, "R2")
        await queued(proxy, 1)
        [second] = [t for t in asyncio.all_tasks() - others - before if "_answer" in repr(t.get_coro())]
        pump, let_in = proxy.fleet.freed, []

        def freed() -> None:
            pump()
            if not admission(proxy).waiting and not let_in:
                let_in.append([each.view.in_flight for each in proxy.fleet.replicas.values()])
                second.cancel()

        proxy.fleet.freed = freed
        gate.open()
        await eventually(second.done)
        assert let_in == [[1]]
        await idle(proxy)
        assert gate.seen == ["R1"]


async def test_Q05_cancelled_twice_in_every_state_a_slot_is_given_back_once(upstream):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate, limits={"concurrency": 2}) as proxy:

        def answering() -> list[asyncio.Task]:
            return [t for t in asyncio.all_tasks() if "PlainConnection._answer" in repr(t.get_coro())]

        [view] = [each.view for each in proxy.fleet.replicas.values()]
        for number in range(250):
            async with AsyncExitStack() as clients:
                for name in ("a", "b", "c", "d"):  # two are sent, two wait
                    await ask(clients, proxy, name)
                for _ in range(number % 7):  # somewhere between read and answered
                    await asyncio.sleep(0)
                if number % 5 == 0:
                    await queued(proxy, 2)
                    gate.open()  # one is let in just as it is cancelled
                    await turns(number % 3)
                for task in answering():
                    task.cancel()
                await turns(number % 2)
                for task in answering():
                    task.cancel()
            await eventually(lambda: not (answering() or admission(proxy).waiting or view.in_flight))
            gate.held.clear()
        assert view.in_flight == view.running == view.queued_tokens == 0
        gate.seen.clear()
        client = await ask(stack, proxy, "after")
        await eventually(lambda: "after" in gate.seen)
        gate.open()
        assert (await client.response("POST")).status == 200


WEIGHTS = [
    (CHAT, {"n": 8}, 8),
    (COMPLETIONS, {"best_of": 8, "n": 1}, 8),
    (COMPLETIONS, {"prompt": ["a"] * 8}, 8),
    (COMPLETIONS, {"prompt": ["a", "b"], "n": 4}, 8),
    (CHAT, {"n": 0}, 1),
    (CHAT, {"n": "2"}, 1),
    (CHAT, {"n": 129}, 128),
]


@pytest.mark.parametrize(("path", "fields", "weight"), WEIGHTS)
async def test_Q06_load_and_limits_weigh_by_sequences(upstream, path, fields, weight):
    gate = Gate()
    body = dialect.body(**({"messages": dialect.MESSAGES} if path == CHAT else {"prompt": "a"}) | fields)
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate, limits={"concurrency": 9}) as proxy:
        client = await stack.enter_async_context(await Client.connect(proxy.port))
        await client.send(request("POST", path, body))
        await upstream.arrived()
        assert await in_flight(proxy) == [weight]
        assert upstream.last.body == body  # whatever is wrong with it, the engine says
        one = await ask(stack, proxy, "one")
        two = await ask(stack, proxy, "two")
        await queued(proxy, {1: 0, 8: 1, 128: 2}[weight])
        for _ in range(3):
            await eventually(lambda: gate.held)
            gate.open()
        for each in (client, one, two):
            assert (await each.response("POST")).status == 200
        await idle(proxy)


async def test_Q06_a_request_larger_than_the_limit_waits_for_an_idle_replica(upstream):
    gate = Gate()
    async with AsyncExitStack() as stack, one_at_a_time(upstream, gate, limits={"concurrency": 4}) as proxy:
        await ask(stack, proxy, "one")
        await upstream.arrived()
        large = await ask(stack, proxy, "large", n=8)
        await queued(proxy, 1)
        gate.open()
        await upstream.arrived(2)
        gate.open()
        assert (await large.response("POST")).status == 200
        await idle(proxy)
