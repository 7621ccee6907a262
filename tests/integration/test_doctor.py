"""`warmroute doctor` on simulated replicas of each dialect: healthy ones, and one fault each."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from bench.engine import EventOptions, serve
from bench.engine_events import DIALECTS
from proxy.config import Settings
from proxy.doctor import asking, knowledge
from proxy.doctor.findings import Finding, Level
from proxy.doctor.run import diagnose
from tests.support.patched import Patch, Patched, gone, only_where, refuses, replacing
from tests.support.redis import free_port
from tests.support.replicas import FAST, replicas

Found = dict[tuple[str, str], Finding]
NOTHING: Mapping[str, str] = {}
CLOSED = b"tcp://127.0.0.1:9"


def settings(names: Mapping[str, str], **changes: Any) -> Settings:
    spec = [{"url": url, "name": name, **changes.pop(name, {})} for name, url in names.items()]
    return Settings(**{"replicas": spec, "redis_url": "none", "log_level": "error", **changes})


async def found(settings: Settings) -> Found:
    return {(each.about, each.check): each for each in await diagnose(settings)}


@asynccontextmanager
async def with_faults(
    faults: Mapping[str, Mapping[str, Patch]], url: str, headers: Mapping[str, Mapping[str, str]] = {}
) -> AsyncIterator[dict[str, str]]:
    """A replica for each fault, all in front of one healthy one: name to URL."""
    async with AsyncExitStack() as stack:
        yield {
            name: (await stack.enter_async_context(Patched(url, patches, headers.get(name, NOTHING)))).url
            for name, patches in faults.items()
        }


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(knowledge, "PATIENCE", 3.0)


@pytest.mark.parametrize("dialect", DIALECTS)
async def test_nothing_is_wrong_with_a_healthy_replica(dialect):
    async with replicas(dialect=dialect) as (one,):
        told = await found(settings({"a": one.url}))
    wrong = [each for each in told.values() if each.level > Level.NOTE]
    if dialect.startswith("sglang"):  # the simulated one has vLLM's metrics only
        wrong = [each for each in wrong if each.check != "metrics"]
    assert wrong == []
    checks = {check for about, check in told if about == "a"}
    assert checks >= {
        "health", "clock", "metrics", "block size", "cache size", "tokenizer", "cached tokens", "streams",
        "priority", "events",
    }  # fmt: skip
    assert told["a", "events"].level is Level.FINE


def _cached(number: bytes) -> Patch:
    return replacing(rb'"cached_tokens":\d+', b'"cached_tokens":' + number)


COMPLETIONS = "/v1/completions"
NO_DETAILS = replacing(rb'"prompt_tokens_details":\{[^}]*\}', b'"prompt_tokens_details":null')
NO_PRIORITY = only_where(
    lambda sent: "priority" in sent, refuses(400, "Got priority 1 but priority scheduling is not enabled.")
)
UNCACHED = replacing(rb'enable_prefix_caching="True"', b'enable_prefix_caching="False"')


def _policy(name: str) -> Mapping[str, Patch]:
    """What an engine in its development mode tells."""
    info = {"vllm_config": {"scheduler_config": {"policy": name}}}
    return {"/server_info": lambda *_: (200, json.dumps(info).encode())}


def _in_streams(patch: Patch) -> Patch:
    return only_where(lambda sent: bool(sent.get("stream")), patch)


VLLM: dict[str, Mapping[str, Patch]] = {
    "unhealthy": {"/health": refuses(503, "the engine is dead")},
    "locked": {"/v1/models": refuses(401, "no key")},
    "anonymous": {"/v1/models": replacing(rb'"owned_by":"vllm"', b'"owned_by":"acme"')},
    "mute": {"/metrics": gone},
    "renamed": {"/metrics": replacing(rb"vllm:kv_cache_usage_perc", b"vllm:kv_usage")},
    "sparse": {"/metrics": replacing(rb"vllm:num_requests_running", b"vllm:busy")},
    "uncached": {"/metrics": UNCACHED},
    "forgetful": {COMPLETIONS: only_where(lambda sent: not sent.get("stream"), _cached(b"0"))},
    "discreet": {COMPLETIONS: NO_DETAILS},
    "terse": {COMPLETIONS: _in_streams(replacing(rb'"usage":', b'"used":'))},
    "stubborn": {COMPLETIONS: _in_streams(refuses(400, "unknown field"))},
    "orderless": {COMPLETIONS: NO_PRIORITY},
    "promised": {COMPLETIONS: NO_PRIORITY},
    "ignorant": _policy("fcfs"),
    "ordered": _policy("priority"),
    "declared": _policy("priority"),
    "untokenised": {"/tokenize": gone},
    "other": {"/tokenize": replacing(rb'"tokens":\[', b'"tokens":[7,')},
    "silent": {"/kv_event_sources": replacing(rb'"endpoint":"[^"]*"', b'"endpoint":"' + CLOSED + b'"')},
    "eventless": {"/kv_event_sources": gone},
    "unreplayed": {"/kv_event_sources": replacing(rb'"replay_endpoint":"[^"]*"', b'"replay_endpoint":null')},
    "late": {},
}  # fmt: skip
EXPECTED = {
    ("unhealthy", "health"): (Level.LOSS, "the engine is dead", "WARMROUTE_REPLICAS"),
    ("locked", "models"): (Level.LOSS, "401", "WARMROUTE_UPSTREAM_API_KEY"),
    ("anonymous", "engine"): (Level.WARNING, "which engine", '"engine"'),
    ("mute", "metrics"): (Level.WARNING, "404", "--disable-log-stats"),
    ("mute", "block size"): (Level.LOSS, "does not say", '"block_size"'),
    ("mute", "cache size"): (Level.WARNING, "guessed", "--disable-log-stats"),
    ("renamed", "metrics"): (Level.WARNING, "vllm:kv_cache_usage_perc", "--disable-log-stats"),
    ("sparse", "metrics"): (Level.NOTE, "vllm:num_requests_running", "--disable-log-stats"),
    ("uncached", "prefix caching"): (Level.LOSS, "off", "--enable-prefix-caching"),
    ("forgetful", "cached tokens"): (Level.LOSS, "found nothing", "--enable-prefix-caching"),
    ("discreet", "cached tokens"): (Level.WARNING, "do not tell", "--enable-prompt-tokens-details"),
    ("terse", "streams"): (Level.WARNING, "not told", "WARMROUTE_STREAM_USAGE=never"),
    ("stubborn", "streams"): (Level.WARNING, "refused", "WARMROUTE_STREAM_USAGE=never"),
    ("orderless", "priority"): (Level.NOTE, "does not order", "--scheduling-policy priority"),
    ("promised", "priority"): (Level.LOSS, "refuses", "--scheduling-policy priority"),
    ("ignorant", "priority"): (Level.LOSS, "ignores", "--scheduling-policy priority"),
    ("ordered", "priority"): (Level.NOTE, "not used for it", "low_first"),
    ("declared", "priority"): (Level.FINE, "low_first", ""),
    ("good", "priority"): (Level.NOTE, "does not say", "low_first"),
    ("untokenised", "tokenizer"): (Level.WARNING, "could not be compared", "/tokenize"),
    ("other", "tokenizer"): (Level.LOSS, "own token ids", "WARMROUTE_TOKENIZER"),
    ("silent", "events"): (Level.LOSS, "none came", "kv_events"),
    ("eventless", "events"): (Level.LOSS, "publishes none", "--kv-events-config"),
    ("unreplayed", "events"): (Level.WARNING, "missed", "replay_endpoint"),
    ("late", "clock"): (Level.WARNING, "behind", "NTP"),
}


async def test_each_fault_of_a_vllm_is_found_with_what_fixes_it():
    long_ago = {"late": {"Date": "Sat, 01 Jan 2000 00:00:00 GMT"}}
    async with replicas() as (one,), with_faults(VLLM, one.url, long_ago) as urls:
        names = {"good": one.url, **urls, "nobody": f"http://127.0.0.1:{free_port()}"}
        orders = {name: {"priority": "low_first"} for name in ("promised", "ignorant", "declared")}
        told = await found(settings(names, **orders))
    for what, (level, word, fix) in EXPECTED.items():
        finding = told[what]
        assert (finding.level, word in finding.what, fix in finding.fix) == (level, True, True), finding
    assert told["nobody", "health"].level is Level.LOSS
    assert told["uncached", "events"].level is Level.NOTE
    meant = {name for name, _ in EXPECTED if name != "good"} | {"nobody"}
    assert not [each for each in told.values() if each.about not in meant and each.level > Level.NOTE]
    beside = {key for key in told if told[key].level > Level.NOTE} - EXPECTED.keys()
    assert beside <= {("nobody", "health"), ("anonymous", "tokenizer"), ("mute", "events")}


SGLANG: dict[str, Mapping[str, Patch]] = {
    "radixless": {"/server_info": replacing(rb"^\{", b'{"disable_radix_cache":true,')},
    "paged": {"/server_info": replacing(rb'"page_size":\d+', b'"page_size":1')},
    "mute": {"/metrics": gone},
    "discreet": {COMPLETIONS: NO_DETAILS},
    "eventless": {"/server_info": replacing(rb'"kv_events":', b'"none":')},
    "ordered": {"/server_info": replacing(rb"^\{", b'{"enable_priority_scheduling":true,')},
}  # fmt: skip


async def test_each_fault_of_an_sglang_is_found_with_what_fixes_it():
    expected = {
        ("radixless", "prefix caching"): (Level.LOSS, "--disable-radix-cache"),
        ("paged", "block size"): (Level.LOSS, "--page-size"),
        ("fleet", "block size"): (Level.LOSS, "--page-size"),
        ("mute", "metrics"): (Level.WARNING, "--enable-metrics"),
        ("discreet", "cached tokens"): (Level.WARNING, "--enable-cache-report"),
        ("eventless", "events"): (Level.LOSS, "--kv-events-config"),
        ("ordered", "priority"): (Level.NOTE, "high_first"),
    }
    async with replicas(dialect="sglang-maps") as (one,), with_faults(SGLANG, one.url) as urls:
        told = await found(settings({"good": one.url, **urls}))
    for what, (level, fix) in expected.items():
        assert (told[what].level, fix in told[what].fix) == (level, True), told[what]
    assert told["good", "cached tokens"].level is Level.FINE


async def test_what_the_settings_get_wrong_is_found():
    async with replicas() as (one,):
        told = await found(settings({"a": one.url}, tokenizer="bytes", block_size=32, a={"kv_events": "off"}))
    assert "WARMROUTE_TOKENIZER" in told["a", "tokenizer"].fix
    assert told["a", "block size"].fix == "WARMROUTE_BLOCK_SIZE=auto"
    assert "kv_events" in told["a", "events"].fix
    assert told["a", "events"].level is told["a", "block size"].level is Level.LOSS


async def test_each_data_parallel_rank_is_asked():
    async with serve(FAST, events=EventOptions(), ranks=2) as (one,):
        told = await found(settings({"a": one.url}))
    assert {about for about, _ in told} == {"a@0", "a@1", "fleet", "redis"} - {"fleet"}
    assert told["a@0", "events"].level is told["a@1", "events"].level is Level.FINE


async def test_an_empty_fleet_is_said_to_be_empty():
    told = await found(Settings(redis_url="none"))
    assert told["fleet", "replicas"].level is Level.LOSS
    assert "WARMROUTE_REPLICAS" in told["fleet", "replicas"].fix


async def test_a_replica_that_never_answers_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(asking, "SECONDS", 0.2)

    async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(hold, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        told = await found(settings({"a": f"http://127.0.0.1:{port}"}, probes={"timeout": 0.2}))
    assert "did not answer" in told["a", "health"].what


LLAMA: Mapping[str, Patch] = {
    "/v1/models": replacing(rb'"owned_by":"vllm"', b'"owned_by":"llamacpp"'),
    "/props": lambda *_: (200, b'{"total_slots": 4, "default_generation_settings": {"n_ctx": 8192}}'),
    "/metrics": lambda *_: (200, b"llamacpp:requests_processing 0\nllamacpp:prompt_tokens_cached_total 0\n"),
    "/kv_event_sources": gone,
}


async def test_a_llama_cpp_is_asked_for_what_it_has():
    kinds = {"good": LLAMA, "mute": {**LLAMA, "/metrics": refuses(501, "start it with --metrics")}}
    async with replicas() as (one,), with_faults(kinds, one.url) as urls:
        told = await found(settings(urls, mute={"priority": "low_first"}))
    good = {check: each for (about, check), each in told.items() if about == "good"}
    assert good.pop("events").level is Level.NOTE
    assert "not be compared" in good.pop("tokenizer").what  # as the simulated one renders no chats
    assert {each.level for each in good.values()} == {Level.FINE}
    assert "priority" not in good
    assert "--metrics" in told["mute", "metrics"].fix
    assert told["mute", "priority"].level is Level.WARNING
