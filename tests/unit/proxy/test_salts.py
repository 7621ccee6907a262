"""A cache of its own for each key: one salt for router and engine, which nothing a client sends evades."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.errors import BadRequest, CannotIsolate
from proxy.prompt.keyer import Keyer
from proxy.prompt.parse import Endpoint, parse
from proxy.prompt.splice import splice_last
from proxy.salts import Salts
from tests.support import dialect

SALTS = Salts(b"secret")
CHAT = dialect.chat()
LONG = [{"role": "user", "content": "word " * 200}]


def salt(caller: str, body: bytes = CHAT, endpoint: Endpoint = Endpoint.CHAT, salts: Salts = SALTS) -> str:
    return salts.apply(parse(endpoint, body), caller).value


def test_each_key_has_one_salt_and_no_other_key_has_it():
    assert salt("a") == salt("a")
    assert len({salt("a"), salt("b"), salt("ab"), salt(""), salt("a", salts=Salts(b"other"))}) == 5
    assert len(salt("a")) == 32


def test_the_clients_own_salt_divides_its_cache_and_reaches_no_other():
    own = dialect.chat(cache_salt="x")
    assert len({salt("a"), salt("a", own), salt("b", own), salt("a", dialect.chat(cache_salt="y"))}) == 4
    forged = dialect.chat(cache_salt=salt("b"))
    assert salt("a", forged) not in {salt("b"), salt("b", forged)}


@given(st.text(max_size=5), st.text(max_size=5), st.text(max_size=5), st.text(max_size=5))
def test_I02_no_two_pairs_of_key_and_salt_read_alike(a, x, b, y):
    ours, theirs = (salt(name, dialect.chat(cache_salt=given)) for name, given in ((a, x), (b, y)))
    assert (ours == theirs) == ((a, x) == (b, y))


def test_I02_no_salt_is_another_than_an_empty_one():
    assert salt("a") != salt("a", dialect.chat(cache_salt=""))


def keys(caller: str | None, body: bytes) -> list[int]:
    keyer = Keyer(secret=b"secret", model="m", block_size=16)
    parsed = parse(Endpoint.CHAT, body)
    if caller is not None:
        SALTS.apply(parsed, caller)
    keying = keyer.begin(parsed)
    keying.run()
    return list(keying.keys)


def test_the_routers_keys_are_apart_from_the_first_block_on():
    body = dialect.body(messages=LONG)
    chains = [keys(caller, body) for caller in ("a", "b", None)]
    assert all(chains)
    assert len({key for chain in chains for key in chain}) == sum(map(len, chains))
    assert keys("a", body) == chains[0]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engine_is_told_the_same_salt_as_the_router(engine):
    parsed = parse(Endpoint.CHAT, CHAT)
    made = SALTS.apply(parsed, "a")
    sent = json.loads(made.into(CHAT, engine))
    assert sent.pop("cache_salt") == made.value == parsed.cache_salt
    assert sent == json.loads(CHAT)


def test_sglangs_own_endpoint_has_a_field_of_another_name():
    body = b'{"text": "x", "extra_key": "mine", "cache_salt": "ignored there"}'
    parsed = parse(Endpoint.GENERATE, body)
    made = SALTS.apply(parsed, "a")
    assert json.loads(made.into(body, "sglang"))["extra_key"] == made.value == parsed.extra_key
    assert made.value == salt("a", b'{"text": "x", "extra_key": "mine"}', Endpoint.GENERATE)
    assert made.value != salt("a", b'{"text": "x"}', Endpoint.GENERATE)


UNTOLD = [
    ("llama_cpp", Endpoint.CHAT),
    ("openai", Endpoint.CHAT),
    ("", Endpoint.CHAT),
    ("vllm", Endpoint.MESSAGES),
    ("vllm", Endpoint.GENERATE),
    ("vllm", Endpoint.EMBEDDINGS),
    ("vllm", Endpoint.RERANK),
    ("sglang", Endpoint.MESSAGES),
]


@pytest.mark.parametrize(("engine", "endpoint"), UNTOLD)
def test_what_cannot_be_kept_apart_is_refused(engine, endpoint):
    made = SALTS.apply(parse(endpoint, b'{"model": "m"}'), "a")
    with pytest.raises(CannotIsolate) as caught:
        made.into(b'{"model": "m"}', engine)
    assert caught.value.status == 501
    assert b"WARMROUTE_SALT_PER_KEY" in caught.value.body()
    assert made.value.encode() not in caught.value.body()


EVASIONS = [
    b'{"cache_salt":"mine","model":"m"}',
    b'{"model":"m","cache_salt":null}',
    b'{"model":"m","cache_salt":["x"]}',
    b'{"model":"m","cache_salt":"a","cache_salt":"b"}',
    b'{"model":"m","cache\\u005fsalt":"mine"}',
    b'{"model":"m","x":"}","y":{"cache_salt":"z"}}  \r\n\t',
    b"{}",
    b" { } ",
    b'{"a":{}}',
]


@pytest.mark.parametrize("body", EVASIONS)
def test_no_way_of_writing_another_salt_counts(body):
    sent = splice_last(body, "cache_salt", "ours")
    assert json.loads(sent)["cache_salt"] == "ours"
    assert {**json.loads(body), "cache_salt": "ours"} == json.loads(sent)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'"}"',
        b"null",
        b'{"a":1}x',
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-16-be"),
    ],
)
def test_a_body_that_cannot_be_salted_is_refused(body):
    with pytest.raises(BadRequest):
        splice_last(body, "cache_salt", "ours")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text() | st.just("cache_salt"), json_values, max_size=5),
    st.text(),
    st.booleans(),
    st.sampled_from(["", " ", "\r\n\t "]),
)
def test_everything_else_stays_byte_for_byte(fields, value, ascii_only, space):
    body = (space + json.dumps(fields, ensure_ascii=ascii_only, indent=1) + space).encode("utf-8", "ignore")
    sent = splice_last(body, "cache_salt", value)
    assert json.loads(sent) == {**json.loads(body), "cache_salt": value}
    end = body.rindex(b"}")
    assert sent.startswith(body[:end])
    assert sent.endswith(body[end:])


@given(st.binary(max_size=60))
def test_any_bytes_are_salted_or_refused(raw):
    """Whatever Python's JSON makes of it then has our salt, or it is no object."""
    try:
        sent = splice_last(raw, "cache_salt", "ours")
    except BadRequest:
        return
    try:
        value = json.loads(sent)
    except ValueError:
        return
    assert value["cache_salt"] == "ours"
