"""The dashboard in a real Chromium: it shows what /metrics says, whoever looks, on whatever screen."""

import json
import random
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy import figures
from proxy.app import Proxy
from proxy.metrics import TTFT_BUCKETS
from tests.support import dialect
from tests.support.admin import TOKEN
from tests.support.browser import BINARY, Page, browsing
from tests.support.client import exchange
from tests.support.fixtures import counts, serving, total
from tests.support.upstream import Upstream

pytestmark = pytest.mark.skipif(BINARY is None, reason="no Chromium is installed")
HOSTILE = '<img src="x" onerror="window.hacked=1">&amp;</script>'
CHAT = "/v1/chat/completions"
CELL = "(id, row, cell) => document.querySelector(`#${id} tbody`).rows[row].cells[cell].textContent"


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    async with browsing(tmp_path / "browser") as page:
        yield page


UNHARMED = "window.hacked === undefined && document.images.length === 0 && document.scripts.length === 1"


async def stream(proxy: Proxy, upstream: Upstream, count: int) -> None:
    """Send so many streams, each answered with 16 of 32 prompt tokens from the cache."""
    events = dialect.delta("a"), dialect.delta("b"), dialect.usage_event(prompt=32, cached=16), dialect.DONE
    upstream.behaviour = dialect.stream_of(*events)
    before = await total(proxy, "warmroute_requests_total")
    for _ in range(count):
        body = json.dumps({"model": upstream.model, "messages": dialect.MESSAGES, "stream": True})
        assert (await exchange(proxy.port, "POST", CHAT, body.encode())).status == 200
    await counts(proxy, "warmroute_requests_total", before + count)


async def cell(page: Page, section: str, row: int, column: int) -> str:
    text = await page.run(f"({CELL})({section!r}, {row}, {column})")
    assert isinstance(text, str)
    return text


async def agrees(page: Page, proxy: Proxy) -> None:
    """Wait until the page tells of every request, and compare what it tells with /metrics."""
    answered = figures.count(await total(proxy, "warmroute_requests_total"))
    await page.until(f"document.querySelector('#headline').textContent.includes('{answered} answered')")
    prompt = await total(proxy, "warmroute_prefix_tokens_total", stage="prompt")
    for row, stage in enumerate(("prompt", "available", "routed")):
        tokens = await total(proxy, "warmroute_prefix_tokens_total", stage=stage)
        assert await cell(page, "waterfall", row, 1) == figures.percent(tokens, prompt)
        assert await cell(page, "waterfall", row, 2) == figures.count(tokens)
    reported = await total(proxy, "warmroute_cached_tokens_total")
    out_of = await total(proxy, "warmroute_cached_prompt_tokens_total")
    assert await cell(page, "waterfall", 3, 1) == figures.percent(reported, out_of)
    assert await cell(page, "waterfall", 3, 2) == figures.count(reported)
    counts_ = await buckets(proxy)
    assert await cell(page, "ttft", 0, 2) == figures.count(sum(counts_))
    for column, q in ((3, 0.5), (4, 0.95)):
        assert await cell(page, "ttft", 0, column) == figures.seconds(
            figures.quantile(TTFT_BUCKETS, counts_, q)
        )
    blocks = await total(proxy, "warmroute_replica_cache_blocks")
    assert await cell(page, "fleet", 0, 4) == f"{figures.short(blocks)} blocks"
    assert await cell(page, "fleet", 0, 8) == figures.count(await total(proxy, "warmroute_decisions_total"))
    await page.until(f"document.querySelectorAll('#decisions tbody tr').length === {answered}")


async def buckets(proxy: Proxy) -> list[int]:
    """How many times to first tokens fell into each bucket."""
    below = [await total(proxy, "warmroute_ttft_seconds_bucket", le=str(bound)) for bound in TTFT_BUCKETS]
    below.append(await total(proxy, "warmroute_ttft_seconds_bucket", le="+Inf"))
    return [int(each - before) for before, each in zip([0.0, *below], below, strict=False)]


async def test_it_loads_updates_and_equals_metrics(page: Page, upstreams: Any, proxy_factory: Any) -> None:
    (upstream,) = await upstreams(1, model=HOSTILE)
    proxy = await proxy_factory(upstream)
    await page.open(f"{proxy.url}/ui")
    await page.until("document.getElementById('status').textContent === 'Live'")
    await page.until("document.querySelector('#waterfall .empty') !== null")
    await stream(proxy, upstream, 3)
    await agrees(page, proxy)
    await stream(proxy, upstream, 4)
    await agrees(page, proxy)

    assert HOSTILE in await page.run("document.querySelector('#fleet').textContent")
    await page.run("document.querySelector('#decisions button').click()")
    await page.until("document.querySelector('#why .because') !== null")
    assert HOSTILE in await page.run("document.querySelector('#why').textContent")
    assert await page.run(UNHARMED)
    assert page.complaints == []
    assert {url.partition("/")[0] + url[: len(proxy.url)] for url in page.requested} == {"http:" + proxy.url}
    with pytest.raises(AssertionError, match="TrustedHTML"):
        await page.run("document.body.innerHTML = '<b>x</b>'")


PARTS: dict[str, Any] = json.loads("""{
    "canary": {"canary": {
        "policy": "p", "replicas": ["r"], "against": "q", "phase": "running", "why": "w", "percent": 5,
        "stages": [5, 100], "waiting_for": "x", "arms": {"canary": {
            "requests": 1, "ttft_p95_seconds": 1, "errors": 0, "hit_rate": 0, "kv_usage": 0}}}},
    "prefixes": {"prefixes": [{
        "id": "i", "tokens": 1, "requests_per_minute": 1, "tokens_saved_per_minute": 1, "state": "t",
        "holders": [{"replica": "r"}], "released": ["s"], "replicas_wanted": 2}]},
    "breaks": {"requests_looked_at": 1, "breaks": [{
        "path": "a", "kind": "k", "offset": 1, "requests_per_day": 1, "tokens_per_day": 1, "fix": "f",
        "window": "w"}]},
    "savings": {
        "saved_gpu_seconds": 1, "interval_95": [0, 2], "hit_rate": 1, "round_robin_hit_rate": 0,
        "seconds_per_token": 1e-5, "saved": {"currency": "c", "amount": 1}},
    "shadow": {"shadows": [
        {"policy": "p", "requests": 1, "available_rate": 1, "hit_rate": 0, "modelled_ttft_seconds": 1}]}
}""")
"""What else is told under /admin, with every text that there can be."""


async def answered(told: Any, _: Any) -> web.Response:
    return web.json_response(told)


async def test_no_name_is_taken_for_markup(page: Page, upstream: Upstream, proxy_factory: Any) -> None:
    """Wherever a text may come from, it is shown as it is."""

    def hostile(told: Any) -> Any:
        if isinstance(told, dict):
            return {name: hostile(each) for name, each in told.items()}
        if isinstance(told, list | tuple):
            return [hostile(each) for each in told]
        return f"{told}{HOSTILE}" if isinstance(told, str) else told

    proxy = await proxy_factory(upstream)
    await stream(proxy, upstream, 2)
    paths = proxy._server._admin._paths
    make = proxy._live.make
    proxy._live.make = lambda: hostile({**make(), "parts": {"redis": {"up": False, "why": "away"}}})
    for path, told in PARTS.items():
        paths["GET", f"/admin/{path}"] = partial(answered, hostile(told))
    act = paths["GET", "/admin/requests"]

    async def requests(request: Any) -> web.Response:
        return await answered(hostile(json.loads((await act(request)).body)), request)

    paths["GET", "/admin/requests"] = requests
    await page.open(f"{proxy.url}/ui")
    await page.until("document.querySelector('#decisions tbody button') !== null")
    for section in ("fleet", "waterfall", "ttft", "decisions", "policy", "notices", *PARTS):
        await page.until(f"document.getElementById('{section}').textContent.includes({json.dumps(HOSTILE)})")
    assert await page.run(UNHARMED)


async def test_the_token_is_asked_for_once(page: Page, upstream: Upstream, proxy_factory: Any) -> None:
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    await page.open(f"{proxy.url}/ui")
    await page.until("document.activeElement.id === 'token'")
    assert await page.run("document.getElementById('figures').hidden")
    assert await page.run("document.getElementById('refused').textContent") == ""
    await page.type("wrong")
    await page.press("Enter")
    await page.until("document.getElementById('refused').textContent === 'This token was not accepted.'")
    await page.until("document.activeElement.id === 'token' && document.activeElement.value === ''")
    await page.type(TOKEN)
    await page.press("Enter")
    await page.until("document.getElementById('status').textContent === 'Live'")
    await page.open(f"{proxy.url}/ui")
    await page.until("document.getElementById('status').textContent === 'Live'")
    assert await page.run("document.getElementById('ask').hidden")
    assert all("401" in each for each in page.complaints), page.complaints
    assert not any(TOKEN in url for url in page.requested)


async def test_it_is_read_by_keyboard_on_any_screen(
    page: Page, upstream: Upstream, proxy_factory: Any
) -> None:
    proxy = await proxy_factory(upstream)
    await stream(proxy, upstream, 2)
    await page.open(f"{proxy.url}/ui")
    await page.until("document.querySelector('#decisions tbody button') !== null")
    focused = "document.activeElement.matches('#decisions button')"
    for _ in range(12):
        await page.press("Tab")
        if await page.run(focused):
            break
    assert await page.run(focused)
    style = "getComputedStyle(document.activeElement).outlineStyle"
    assert await page.run(style) == "solid"
    await page.press("Enter")
    await page.until("document.querySelector('#why[open] .because') !== null")
    await page.press("Escape")
    await page.until("!document.querySelector('#why').open")
    assert await page.run(focused)

    for width in (320, 375, 768, 1280):
        await page.resize(width, 800)
        assert await page.run("document.documentElement.scrollWidth") <= width
    assert await page.run(UNNAMED) == []
    faint = {}
    for dark in (False, True):
        await page.resize(1280, 900, dark=dark)
        faint[dark] = await page.run(FAINT)
        assert faint[dark]["faint"] == []
    assert faint[False]["paper"] != faint[True]["paper"]
    assert page.complaints == []


UNNAMED = """
[...document.querySelectorAll("section, table, button, input, dialog, fieldset, ul")].filter((node) => {
  if (node.matches("section, dialog, ul")) {
    const heading = document.getElementById(node.getAttribute("aria-labelledby"));
    return !(node.getAttribute("aria-label") || heading?.textContent);
  }
  if (node.matches("table")) {
    const heads = [...node.tHead.rows[0].cells].every((cell) => cell.scope === "col" && cell.textContent);
    const named = [...node.tBodies[0].rows].every((row) => row.cells[0].scope === "row");
    return !(heads && named && node.caption?.textContent);
  }
  if (node.matches("button")) return !node.textContent && !node.title;
  if (node.matches("fieldset")) return !node.querySelector("legend");
  return !node.labels.length;
}).map((node) => node.outerHTML.slice(0, 80)).concat(
  document.querySelectorAll("h1").length === 1 && document.querySelector("main") ? [] : ["landmarks"],
  document.documentElement.lang === "en" ? [] : ["lang"],
)
"""
"""What a screen reader would have no name for."""

FAINT = """
(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) ?? []).map(Number);
  const linear = (v) => (v <= 10 ? v / 3294.6 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b);
  const under = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = parse(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
  };
  const faint = [...document.querySelectorAll("#figures *, body > header *")].filter((node) => {
    const text = [...node.childNodes].some((each) => each.nodeType === 3 && each.data.trim());
    if (!text || !node.checkVisibility()) return false;
    const [a, b] = [light(parse(getComputedStyle(node).color)), light(under(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05) < 4.5;
  });
  return { faint: faint.map((node) => node.textContent.slice(0, 40)), paper: under(document.body) };
})()
"""
"""Text whose contrast is below what WCAG 2.2 asks for at level AA (1.4.3), and the page's own colour."""


async def test_it_waits_for_a_proxy_that_goes_away(page: Page, upstream: Upstream) -> None:
    async with serving(upstream) as proxy:
        port = proxy.port
        await page.open(f"{proxy.url}/ui")
        await page.until("document.getElementById('status').dataset.state === 'live'")
    await page.until("document.getElementById('status').dataset.state === 'lost'")
    async with serving(upstream, port=port):
        await page.until("document.getElementById('status').dataset.state === 'live'")


async def test_its_arithmetic_is_that_of_the_proxy(
    page: Page, upstream: Upstream, proxy_factory: Any
) -> None:
    proxy = await proxy_factory(upstream)
    await page.open(f"{proxy.url}/ui")
    rng = random.Random(7)
    cases = [[rng.choice((0, 0, 1, 7, 400)) for _ in range(len(TTFT_BUCKETS) + 1)] for _ in range(200)]
    quantiles = [rng.choice((0.0, 0.05, 0.5, 0.95, 1.0)) for _ in cases]
    asked = json.dumps([TTFT_BUCKETS, cases, quantiles])
    script = f"""
    import("/ui/figures.js").then(({{ quantile, seconds }}) => {{
      const [bounds, cases, quantiles] = {asked};
      return cases.map((counts, at) => [quantile(bounds, counts, quantiles[at]), counts.length]
        .concat(seconds(quantile(bounds, counts, quantiles[at]))));
    }})
    """
    for counts_, q, (value, _, text) in zip(cases, quantiles, await page.run(script), strict=True):
        mine = figures.quantile(TTFT_BUCKETS, counts_, q)
        if mine is None or mine == float("inf"):
            assert value is None  # JSON has no infinity
        else:
            assert value == pytest.approx(mine)
            assert text == figures.seconds(mine)
