"""The counters tell what the engines did: shared and random traffic can be compared from them alone."""

from collections import defaultdict

from prometheus_client.parser import text_string_to_metric_families

from tests.engines.calls import get, post, words
from tests.engines.conftest import Served

CHAT = "/v1/chat/completions"


async def counters(served: Served, *labels: str) -> dict[tuple[str, ...], float]:
    """Every counter of the proxy, summed over all but these labels."""
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for family in text_string_to_metric_families((await get(served.url, "/metrics")).text):
        for sample in family.samples:
            kept = [sample.labels[label] for label in labels if label in sample.labels]
            found[(sample.name, *kept)] += sample.value
    return found


async def test_counters_agree_with_what_the_engines_reported(cold: Served) -> None:
    shared, turns = words("metrics", 600), []
    for number in range(6):
        turns.append([("system", shared), ("user", words(f"question {number}", 30))])
        turns.append([("system", words(f"unique {number}", 300)), ("user", "Go")])
    prompts = cached = 0
    for number, turn in enumerate(turns):
        messages = [{"role": role, "content": content} for role, content in turn]
        body = {"model": "mid", "messages": messages, "max_tokens": 2, "temperature": 0}
        if number == len(turns) - 2:  # a stream that does not ask for usage: the proxy does
            answer = await post(cold.url, CHAT, {**body, "stream": True})
            assert "usage" not in answer.text
            unseen = answer.counted
        else:
            reported = (await post(cold.url, CHAT, body)).usage()
            prompts, cached = prompts + reported[0], cached + reported[1]
    by_group = await counters(cold, "group", "stage")
    total = await counters(cold, "stage")
    all_prompts, all_cached = (total[f"warmroute_cached{kind}_tokens_total",] for kind in ("_prompt", ""))
    assert all_prompts == prompts + unseen
    assert cached <= all_cached <= cached + unseen
    assert total["warmroute_prefix_tokens_total", "prompt"] == all_prompts
    available, routed = (total["warmroute_prefix_tokens_total", stage] for stage in ("available", "routed"))
    assert all_prompts >= available >= routed == all_cached > 0
    assert by_group["warmroute_cached_tokens_total", "random"] == 0
    assert by_group["warmroute_cached_tokens_total", "shared"] == all_cached
    assert by_group["warmroute_cached_prompt_tokens_total", "shared"] < all_prompts
    assert total["warmroute_replica_cached_tokens_total",] == all_cached
