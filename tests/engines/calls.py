"""Calls to a real engine, or to the proxy in front of it, and what their answers tell."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any
from urllib.parse import urlsplit

from tests.support.client import Client
from tests.support.eventually import eventually
from tests.support.http import Message, request

BLOCK = 32
"""Tokens of a block, as the replicas of the suite are started."""
SLOW = 60.0
"""Seconds a call may take: replicas on a CPU share it."""
JSON = ("Content-Type", "application/json")
WORDS = ["able", "about", "above", "accept", "access", "across", "action", "active", "address", "after"]


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


def words(seed: object, count: int) -> str:
    """Text of so many words, each with its blank one token; another seed gives another text."""
    return " ".join(Random(str(seed)).choices(WORDS, k=count))


@dataclass(frozen=True)
class Replica:
    """Something that a proxy can be put in front of."""

    url: str


@dataclass
class Answer:
    """An answer, whole."""

    status: int
    message: Message

    @property
    def text(self) -> str:
        return bytes(self.message.body).decode()

    @property
    def json(self) -> Any:
        assert self.status == 200, self.text
        return self.message.json()

    def header(self, name: str) -> str | None:
        value = self.message.one(name)
        return None if value is None else value.decode()

    @property
    def replica(self) -> str:
        name = self.header("x-warmroute-replica")
        assert name is not None
        return name

    @property
    def counted(self) -> int:
        """Prompt tokens as the proxy counted them."""
        return int(self.header("x-warmroute-prompt-tokens") or "-1")

    @property
    def predicted(self) -> int:
        """Cached tokens as the proxy foretold them."""
        return int(self.header("x-warmroute-predicted-cached-tokens") or "-1")

    def usage(self) -> tuple[int, int]:
        """Prompt tokens and cached tokens as the engine reported them, whatever the endpoint's shape."""
        assert self.status == 200, self.text
        found = [usage for event in self.events() for usage in _usages(event)]
        assert found, self.text
        last = found[-1]
        if "prompt_tokens" in last:
            return last["prompt_tokens"], last["prompt_tokens_details"]["cached_tokens"]
        if "input_tokens_details" in last:
            return last["input_tokens"], last["input_tokens_details"]["cached_tokens"]
        read = last["cache_read_input_tokens"]
        return last["input_tokens"] + read + last["cache_creation_input_tokens"], read

    def events(self) -> list[Any]:
        """The JSON of each event of a stream, or the one object of an answer in one piece."""
        if not (self.header("content-type") or "").startswith("text/event-stream"):
            return [self.message.json()]
        lines = re.findall(r"^data: (\{.*)$", self.text, re.MULTILINE)
        return [json.loads(line) for line in lines]

    def content(self) -> str:
        """The text of a chat's first choice."""
        choices = [choice for event in self.events() for choice in event["choices"][:1]]
        return "".join((choice.get("delta") or choice.get("message"))["content"] or "" for choice in choices)


def _usages(event: Any) -> Iterator[dict[str, Any]]:
    for holder in (event, event.get("response"), event.get("message")):
        if isinstance(holder, dict) and holder.get("usage"):
            yield holder["usage"]


async def post(url: str, path: str, body: Any, *headers: tuple[str, str]) -> Answer:
    """POST a body, encoded as JSON unless it is bytes, on a connection of its own."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await _call(url, "POST", path, raw, [JSON, *headers])


async def get(url: str, path: str) -> Answer:
    return await _call(url, "GET", path)


async def _call(
    url: str, method: str, path: str, body: bytes | None = None, headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    async with await Client.connect(port_of(url)) as client:
        await client.send(request(method, path, body, headers, host=urlsplit(url).netloc))
        response = await client.response(method, within=SLOW)
    assert response.complete
    return Answer(response.status, response)


async def tokens_of(engine: str, body: dict[str, Any]) -> list[int]:
    """The ids that an engine makes of a chat or of a prompt."""
    answer = await post(engine, "/tokenize", body)
    return list(answer.json["tokens"])


async def gauge(engine: str, *names: str) -> float:
    """The sum of an engine's gauges or counters of these names."""
    text = (await get(engine, "/metrics")).text
    samples = re.findall(r"^([\w:]+)(?:\{[^\n]*\})? (\S+)$", text, re.MULTILINE)
    found = [float(value) for name, value in samples if name in names]
    assert found, names
    return sum(found)


async def busy(engine: str) -> float:
    """Requests that an engine has running or waiting."""
    return await gauge(engine, "vllm:num_requests_running", "vllm:num_requests_waiting")


async def at_rest(engine: str) -> None:
    """Wait until an engine has nothing to do."""

    async def idle() -> bool:
        return await busy(engine) == 0

    await eventually(idle, f"{engine} is idle", within=SLOW)
