"""Two proxies are replaced one by one, under load, behind a balancer that asks /ready: nothing fails.

Real processes, which share an index as in use. A request counts as failed if its status is not 200, if its
answer is cut short, or if nobody takes its connection.
"""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from signal import SIGTERM

from tests.support import dialect
from tests.support.balancer import Balancer
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.processes import Process, proxy_process
from tests.support.redis import Server
from tests.support.upstream import Exchange, Upstream

CHAT = "/v1/chat/completions"
CLIENTS = 8
PATIENCE = 30.0
SETTINGS = ("--secret", "s" * 32, "--shutdown-delay", "3", "--block-size", "16")


async def generate(exchange: Exchange) -> None:
    """A stream of as many chunks as `max_tokens`, over a second or so; a plain answer at once."""
    body = exchange.request.json()
    if not body.get("stream"):
        await Upstream.reply(exchange)
        return
    await exchange.open_stream()
    for number in range(body["max_tokens"]):
        await exchange.event(dialect.delta(f"{number} "))
        await asyncio.sleep(0.02)
    await exchange.event(dialect.DONE)
    await exchange.end_stream()


class Load:
    """Clients that ask again as soon as they are answered, half of them for streams."""

    def __init__(self, port: int) -> None:
        self.answered = 0
        self.failed: list[str] = []
        self._port = port
        self._over = False
        self._clients = [asyncio.create_task(self._client(number)) for number in range(CLIENTS)]

    async def end(self) -> None:
        """No more requests; those that run come to their end."""
        self._over = True
        await asyncio.gather(*self._clients)

    async def more(self, count: int = 2 * CLIENTS) -> None:
        """Wait until so many more are answered."""
        goal = self.answered + count
        await eventually(lambda: self.failed or self.answered >= goal, "requests go on", within=PATIENCE)

    async def _client(self, number: int) -> None:
        stream = number % 2 == 0
        while not self._over:
            body = dialect.chat(stream=stream, max_tokens=20 if stream else 1)
            try:
                answer = await exchange(self._port, "POST", CHAT, body, within=PATIENCE)
            except (OSError, AssertionError) as error:
                self.failed.append(f"{type(error).__name__}: {error}")
                continue
            whole = answer.complete and (not stream or answer.body.rstrip().endswith(b"data: [DONE]"))
            if answer.status == 200 and whole:
                self.answered += 1
            else:
                self.failed.append(f"{answer.status}, complete: {answer.complete}")


async def test_two_proxies_are_replaced_under_load_and_no_request_fails(upstreams, tmp_path: Path):
    replicas = await upstreams(2)
    for replica in replicas:
        replica.behaviour = generate
    async with AsyncExitStack() as stack:
        redis = await stack.enter_async_context(Server(tmp_path))
        balancer = await stack.enter_async_context(Balancer())

        async def start() -> Process:
            urls = [replica.url for replica in replicas]
            process = await stack.enter_async_context(proxy_process(urls, *SETTINGS, redis_url=redis.url))
            await process.ready()
            balancer.add(process.port)
            await eventually(lambda: balancer.ready(process.port))
            return process

        old = await asyncio.gather(start(), start())
        load = Load(balancer.port)
        await load.more()
        new = []
        for process in old:
            process.signal(SIGTERM)
            assert await process.exit(within=PATIENCE) == 0
            assert "stopped, with 0 sequences in flight" in process.log
            balancer.remove(process.port)
            await load.more()
            new.append(await start())
            await load.more()
        await load.end()
        assert not load.failed
        assert load.answered > 8 * CLIENTS
        assert all(balancer.sent[process.port] for process in (*old, *new))
