"""The `openai` package, as its users call it, with nothing changed but the address."""

import asyncio
from collections.abc import Iterator

import openai
import pytest

from tests.engines.calls import words
from tests.engines.conftest import Served
from tests.support.eventually import eventually

ASK = [{"role": "user", "content": "Say something."}]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
        yield client


def test_models(client: openai.OpenAI) -> None:
    models = list(client.models.list())
    assert [model.id for model in models] == ["mid"]


def test_chat(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="mid", messages=ASK, max_tokens=5, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5


@pytest.mark.parametrize("usage", [False, True])
def test_streamed_chat(client: openai.OpenAI, usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if usage else {}
    stream = client.chat.completions.create(
        model="mid", messages=ASK, max_tokens=5, temperature=0, stream=True, **options
    )
    chunks = list(stream)
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [usage]
    with_choices = chunks[:-1] if usage else chunks
    assert with_choices[-1].choices[0].finish_reason == "length"
    whole = client.chat.completions.create(model="mid", messages=ASK, max_tokens=5, temperature=0)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in with_choices)
    assert text == whole.choices[0].message.content


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="mid", prompt=["Once", "Twice"], max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1]
    stream = client.completions.create(model="mid", prompt="Once", max_tokens=3, stream=True)
    assert "".join([chunk.choices[0].text for chunk in stream])


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model="mid", input="Hi", max_output_tokens=4, temperature=0)
    assert answer.output_text
    stream = client.responses.create(model="mid", input="Hi", max_output_tokens=4, temperature=0, stream=True)
    events = list(stream)
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == answer.output_text


def test_what_was_cached(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": words("client", 300)}, *ASK]
    for _ in range(2):
        raw = client.chat.completions.with_raw_response.create(model="mid", messages=messages, max_tokens=2)
        foretold = int(raw.headers["x-warmroute-predicted-cached-tokens"])
        details = raw.parse().usage.prompt_tokens_details
        assert details.cached_tokens == foretold
    assert foretold > 250


def test_errors_keep_their_kind(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as not_served:
        client.chat.completions.create(model="nobody", messages=ASK)
    assert not_served.value.param == "model"
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(
            model="mid", messages=[{"role": "user", "content": words("long", 9000)}], stream=True
        )
    assert "8192" in too_long.value.message
    with pytest.raises(openai.NotFoundError):  # this model makes none, and the engine says so
        client.embeddings.create(model="mid", input="Hi")


def test_a_closed_stream_leaves_nothing_behind(client: openai.OpenAI, served: Served) -> None:
    stream = client.chat.completions.create(
        model="mid", messages=ASK, max_tokens=6000, stream=True, extra_body={"ignore_eos": True}
    )
    next(stream)
    assert asyncio.run(served.in_flight()) == 1
    stream.close()

    async def none() -> bool:
        return await served.in_flight() == 0

    asyncio.run(eventually(none, "nothing is in flight"))
