"""L01 and S09 in a crowd: many requests at once, of every kind and ending, over kept connections.

Nobody gets a byte of somebody else's answer, and when all is over nothing is in flight.
"""

import asyncio
import json
import logging
from random import Random

import pytest

from tests.support import dialect
from tests.support.client import Client
from tests.support.fixtures import idle, metric
from tests.support.http import chunked, head, request
from tests.support.upstream import Exchange

CHAT = "/v1/chat/completions"
WAYS = [
    "whole",
    "stream",
    "until-close",
    "empty",
    "error",
    "full",
    "break",
    "reset",
    "silent",
    "excess",
    "flood",
]
LEAVES = {"silent", "flood"}
"""What a client does not wait for the end of."""


def answer_for(name: str, rng: Random) -> bytes:
    return b"".join(dialect.delta(f"{name}-{at}") for at in range(rng.randrange(1, 30)))


async def behave(exchange: Exchange) -> None:
    """Answer in the way, and with the text, that the request names."""
    name = exchange.request.json()["user"]
    way, rng = name.partition(":")[0], Random(name)
    text = answer_for(name, rng)
    stream = [("Content-Type", "text/event-stream")]
    cuts = [text[at : at + 97] for at in range(0, len(text), 97)]
    match way:
        case "whole":
            await exchange.answer(text)
        case "stream":
            await exchange.stream(*cuts)
        case "until-close":
            await exchange.head(headers=[*stream, ("Connection", "close")])
            await exchange.send(*cuts)
            exchange.finish()
        case "empty":
            await exchange.send(b"HTTP/1.1 204 No Content\r\n\r\n")
        case "error":
            await exchange.answer(text, "400 Bad")
        case "full":
            await exchange.answer(text, "503 Full")
        case "break":
            await exchange.send(head("HTTP/1.1 200 OK", [*stream, ("Transfer-Encoding", "chunked")]))
            await exchange.send(chunked(text, end=b"")[:-5])
            exchange.finish()
        case "reset":
            exchange.reset()
        case "silent":
            await exchange.hang()
        case "excess":
            await exchange.send(head("HTTP/1.1 200 OK", [("Content-Length", len(text))]) + text + b"excess")
        case "flood":
            await exchange.open_stream()
            while not exchange.gone.is_set():
                await exchange.event(text * 50)


async def one(client: Client, name: str, rng: Random) -> bool:
    """Send the request `name`, check its answer; True if the connection can be used again."""
    way = name.partition(":")[0]
    await client.send(request("POST", CHAT, dialect.chat(stream=rng.random() < 0.5, user=name)))
    if way in LEAVES:
        if way == "flood":
            client.stop_reading()
        await asyncio.sleep(rng.random() / 20)  # anywhere in the exchange
        client.reset() if rng.random() < 0.5 else client.finish()
        return False
    response = await client.response("POST")
    expected = answer_for(name, Random(name))
    match way:
        case "whole" | "stream" | "until-close" | "excess":
            assert (response.status, response.complete) == (200, True)
            assert response.body == expected
        case "empty":
            assert (response.status, response.body) == (204, b"")
        case "error":
            assert (response.status, response.body) == (400, expected)
        case "full":
            assert (response.status, response.body) == (503, expected)
        case "break":
            assert not response.complete or response.status == 502
            assert expected.startswith(bytes(response.body)) or response.error
        case "reset":
            assert (response.status, response.complete) == (502, True)
    return response.complete and not response.closes


@pytest.mark.parametrize("seed", range(3))
async def test_L01_a_crowd_leaves_nothing_behind(upstreams, proxy_factory, caplog, seed):
    caplog.set_level(logging.WARNING)
    replicas = await upstreams(3)
    proxy = await proxy_factory(*replicas, stream_usage="never", probes={"interval": 60, "misses": 100})
    for replica in replicas:
        replica.behaviour = behave

    async def visitor(number: int) -> None:
        rng = Random(f"{seed} {number}")
        client = await Client.connect(proxy.port, receive_buffer=8192)
        for at in range(12):
            name = f"{rng.choice(WAYS)}:{seed}.{number}.{at}"
            if not await one(client, name, rng):
                await client.until_gone()
                client = await Client.connect(proxy.port, receive_buffer=8192)
        client.finish()

    async with asyncio.TaskGroup() as visitors:
        for number in range(24):
            visitors.create_task(visitor(number))
    await idle(proxy)
    assert sum((await metric(proxy, "warmroute_replica_queued_tokens")).values()) == 0
    for replica in replicas:
        names = [json.loads(bytes(each.body))["user"] for each in replica.requests]
        assert len(names) == len(set(names)), "a replica got a request twice"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
