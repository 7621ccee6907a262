"""M02 and what several workers promise: one proxy to whoever looks at it, and to whoever it serves.

Real processes: a supervisor, its workers and its Valkey. Which worker takes a connection is chance; the
kernel tells which did, so each worker is asked by itself.
"""

import asyncio
import json
import os
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy import keys_file
from proxy.config import Settings
from proxy.supervisor import Supervisor
from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.client import Client, exchange
from tests.support.eventually import eventually
from tests.support.http import Response, request
from tests.support.processes import Process, proxy_process
from tests.support.upstream import Exchange, Upstream
from tests.support.workers import PATIENCE, Workers, are_gone, children, lives

pytestmark = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="only Linux tells who accepted")

CHAT = "/v1/chat/completions"
STREAM = request("POST", CHAT, dialect.chat(stream=True))
COUNTED = ("_total", "_count", "_sum", "_bucket")
Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


class Held:
    """A behaviour that begins a stream, and ends it when told."""

    def __init__(self) -> None:
        self.release = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> None:
        await exchange.open_stream()
        await exchange.event(dialect.delta("x"))
        await self.release.wait()
        await exchange.event(dialect.delta("y"), dialect.DONE)
        await exchange.end_stream()


async def samples(client: Client) -> Samples:
    """All that this worker's /metrics tells."""
    page = bytes((await client.exchange("GET", "/metrics", within=PATIENCE)).body).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of(told: Samples, name: str) -> float:
    return sum(value for (each, _), value in told.items() if each == name)


def counters(told: Samples) -> Samples:
    return {key: value for key, value in told.items() if key[0].endswith(COUNTED)}


def requests(told: Samples) -> Samples:
    """What is counted of requests, which stands still while there are none."""
    return {key: value for key, value in told.items() if "requests" in key[0] or "inflight" in key[0]}


async def begin(client: Client) -> None:
    """A stream that has begun."""
    await client.send(STREAM)
    await client.until(method="POST")


async def test_M02_every_worker_tells_the_same_and_counters_outlive_whoever_counted(upstream: Upstream):
    async with (
        proxy_process([upstream.url], "--workers", "3", redis_url="embedded") as process,
        Workers(process) as workers,
    ):
        await process.ready()
        await workers.serve(3)
        clients = await workers.connections()
        for client in clients.values():
            for _ in range(2):
                assert (await client.exchange("POST", CHAT, dialect.chat())).status == 200
        held = upstream.behaviour = Held()
        victim, *others = clients
        for pid in others:
            await begin(await workers.connection(pid))
        for _ in range(7):
            await begin(await workers.connection(victim))

        async def told(number: float, *pids: int) -> Samples:
            """What each of these tells, once that is the same, with so many in flight."""

            async def same() -> Samples | None:
                pages = [await samples(clients[pid]) for pid in pids]
                if any(of(page, "warmroute_replica_inflight") != number for page in pages):
                    return None
                return pages[0] if all(requests(page) == requests(pages[0]) for page in pages) else None

            return await eventually(same, f"all tell {number} in flight", within=PATIENCE)

        before = await told(9, *clients)
        assert of(before, "warmroute_requests_total") == 6
        os.kill(victim, SIGKILL)
        after = await told(2, *others)
        assert not lives(victim)  # reaped
        assert all(after.get(key, 0) >= value for key, value in counters(before).items())
        await workers.serve(3, but=victim)
        clients = await workers.connections()
        again = await told(2, *clients)
        assert all(again.get(key, 0) >= value for key, value in counters(after).items())
        assert of(again, "warmroute_workers") == 3
        assert of(again, "warmroute_worker_restarts_total") == 1

        held.release.set()
        upstream.behaviour = Upstream.reply
        old = list(workers.pids.values())
        for pid in old:
            os.kill(pid, SIGKILL)  # nobody is left to accept, and nobody is refused
        answers = await asyncio.gather(
            *(exchange(process.port, "POST", CHAT, dialect.chat(), within=PATIENCE) for _ in range(8))
        )
        assert [answer.status for answer in answers] == [200] * 8
        assert not any(map(lives, old))
        await workers.serve(3)
        clients = await workers.connections()
        last = await told(0, *clients)
        assert of(last, "warmroute_requests_total") >= of(before, "warmroute_requests_total") + 8
        assert all(last.get(key, 0) >= value for key, value in counters(again).items())


class Two:
    """A proxy of two workers, and a connection to each."""

    def __init__(self, process: Process, workers: Workers) -> None:
        self.process = process
        self.workers = workers
        self.clients: list[Client] = []

    async def connect(self) -> None:
        found = await self.workers.connections()
        self.pids, self.clients = list(found), list(found.values())

    async def admin(self, worker: int, method: str, path: str, body: Any = None) -> Any:
        raw = None if body is None else json.dumps(body).encode()
        response = await self.ask(worker, method, path, raw)
        assert response.status < 300, bytes(response.body)
        return response.json() if response.body else None

    async def ask(self, worker: int, method: str, path: str, raw: bytes | None = None) -> Response:
        bearer = [("Authorization", f"Bearer {TOKEN}")]
        return await self.clients[worker].exchange(method, f"/admin/{path}", raw, bearer, within=PATIENCE)

    async def replicas(self, worker: int) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = (await self.admin(worker, "GET", "replicas"))["replicas"]
        return told

    async def states(self, worker: int) -> dict[str, str]:
        return {each["name"]: each["state"] for each in await self.replicas(worker)}

    async def are(self, **states: str) -> None:
        """Wait until both workers say so."""
        for worker in range(2):

            async def so(worker: int = worker) -> bool:
                return await self.states(worker) == states

            await eventually(so, f"worker {worker} says {states}")


async def test_what_an_operator_orders_or_asks_is_of_all_workers(upstreams, tmp_path):
    one, two = await upstreams(2)
    arguments = ("--workers", "2", "--limits.concurrency", "2", "--admin-token", TOKEN)
    async with (
        proxy_process([one.url], *arguments, redis_url="embedded") as process,
        Workers(process) as workers,
    ):
        await process.ready()
        await workers.serve(2)
        it = Two(process, workers)
        await it.connect()
        a = f"127.0.0.1:{one.port}"

        # explained, wherever it was served
        answer = await it.clients[0].exchange("POST", CHAT, dialect.chat())
        id_ = (answer.one("x-request-id") or b"").decode()
        for worker in range(2):
            assert (await it.admin(worker, "GET", f"requests/{id_}"))["replica"] == a
            assert id_ in [each["id"] for each in (await it.admin(worker, "GET", "requests"))["requests"]]
        assert (await it.ask(1, "GET", "requests/nobody")).status == 404
        assert (await it.clients[1].exchange("GET", "/admin/requests")).status == 401
        assert (await it.clients[1].exchange("POST", "/admin/flush", b"")).status == 401

        # limits count what all have: two fill the replica, whoever took them
        held = one.behaviour = Held()
        for worker in range(2):
            await begin(await workers.connection(it.pids[worker]))

        async def seen() -> bool:
            return [(await it.replicas(worker))[0]["in_flight"] for worker in range(2)] == [2, 2]

        await eventually(seen, "both workers see both")
        waiting = [await workers.connection(pid) for pid in it.pids]
        for client in waiting:
            await client.send(STREAM)

        async def queued() -> bool:
            return [of(await samples(client), "warmroute_queue_length") for client in it.clients] == [2, 2]

        await eventually(queued, "two wait, and both workers say so")
        assert len(one.requests) == 3
        held.release.set()
        for client in waiting:
            assert (await client.response("POST")).complete
        one.behaviour = Upstream.reply

        # what is counted, whoever counted it, and told once a second
        async def together() -> bool:
            frames = [await it.admin(worker, "GET", "overview") for worker in range(2)]
            live = await it.workers.connection(it.pids[0])
            await live.send(request("GET", "/admin/live", headers=[("Authorization", f"Bearer {TOKEN}")]))
            told = bytes((await live.until(b"\n\n")).body).split(b"\n\n")[0]
            frames.append(json.loads(told.removeprefix(b"data: ")))
            return [sum(row["count"] for row in frame["requests"]) for frame in frames] == [5, 5, 5]

        await eventually(together, "both workers, and the live stream, tell of 5 requests", within=PATIENCE)

        # orders
        await it.admin(0, "POST", "replicas", {"url": two.url, "name": "b"})
        await it.are(**{a: "up", "b": "up"})
        again = json.dumps({"url": two.url, "name": "b"}).encode()
        assert (await it.ask(1, "POST", "replicas", again)).status == 409
        await it.admin(1, "POST", f"replicas/{a}/drain")
        await it.are(**{a: "draining", "b": "up"})
        await it.admin(0, "POST", "flush")
        for worker in range(2):
            assert [row["index_blocks"] for row in await it.replicas(worker)] == [0, 0]

        await it.admin(0, "POST", "canary", {"policy": "round_robin"})
        tried = [(await it.admin(worker, "GET", "canary"))["canary"]["phase"] for worker in range(2)]
        assert tried == ["baseline"] * 2

        # and whoever comes later has heard them
        gone = it.pids[0]
        os.kill(gone, SIGKILL)
        await workers.serve(2, but=gone)
        await it.connect()
        await it.are(**{a: "draining", "b": "up"})
        tried = [(await it.admin(worker, "GET", "canary"))["canary"]["phase"] for worker in range(2)]
        assert tried == ["baseline"] * 2
        await it.admin(1, "DELETE", "canary")
        assert [(await it.admin(worker, "GET", "canary"))["canary"] for worker in range(2)] == [None] * 2
        await it.admin(0, "DELETE", f"replicas/{a}/drain")
        await it.admin(1, "DELETE", "replicas/b")
        await it.are(**{a: "up"})

        # none of them outlives the supervisor, however that ends
        family = children(process.pid)
        process.signal(SIGKILL)
        await are_gone(family)
        with pytest.raises(ConnectionRefusedError):
            await Client.connect(process.port)


async def test_rates_are_for_all_workers_and_a_signal_ends_all(upstream: Upstream, tmp_path):
    keys = {name: keys_file.make(name)[0] for name in "ab"}
    entries = [
        {"name": name, "sha256": keys_file.sha256(key.encode()).hexdigest()} for name, key in keys.items()
    ]
    entries[0]["requests_per_minute"] = 6
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(entries))
    arguments = ("--workers", "2", "--api-keys-file", str(file), "--shutdown-delay", "0.5")
    async with (
        proxy_process([upstream.url], *arguments, redis_url="embedded") as process,
        Workers(process) as workers,
        AsyncExitStack() as stack,
    ):
        await process.ready()
        await workers.serve(2)
        first, second = (await workers.connections()).values()
        bearer = {name: [("Authorization", f"Bearer {key}")] for name, key in keys.items()}

        async def call(client: Client) -> int:
            return (await client.exchange("POST", CHAT, dialect.chat(), bearer["a"])).status

        assert [await call(first) for _ in range(6)] == [200] * 6
        let_in = 0

        async def refused() -> bool:
            nonlocal let_in
            status = await call(second)
            let_in += status == 200
            return status == 429

        await eventually(refused, "what one worker has let in counts at the other")
        assert let_in < 6

        family = children(process.pid)
        assert set(workers.pids.values()) < set(family)  # and the Valkey's shell
        held = upstream.behaviour = Held()
        streams = [await workers.connection(pid) for pid in workers.pids.values()]
        for client in streams:
            await client.send(request("POST", CHAT, dialect.chat(stream=True), bearer["b"]))
            await client.until(method="POST")
        process.signal(SIGTERM)

        async def told() -> bool:
            return (await first.exchange("GET", "/ready")).status == 503

        await eventually(told, "it says that it is ending")

        async def refuses() -> bool:
            try:
                await stack.enter_async_context(await Client.connect(process.port))
            except OSError:
                return True
            return False

        await eventually(refuses, "it listens no more")
        held.release.set()
        for client in streams:
            assert (await client.response("POST")).complete
        assert await process.exit(within=PATIENCE) == 0
        await are_gone(family)


async def test_a_port_that_is_taken_is_said_before_anything_is_started(upstream: Upstream, caplog):
    settings = Settings(replicas=[upstream.url], workers=2, port=upstream.port)
    before = children(os.getpid())
    assert await Supervisor(settings).run() == 1
    assert "choose another WARMROUTE_PORT" in caplog.text
    assert children(os.getpid()) == before
