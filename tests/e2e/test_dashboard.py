"""/ui: the files of the page, and under what policy they run."""

import re
from importlib.resources import files
from typing import Any

import pytest

from tests.support.admin import TOKEN
from tests.support.client import exchange
from tests.support.fixtures import ask
from tests.support.upstream import Upstream

UI = files("proxy").joinpath("ui")
NAMES = sorted(each.name for each in UI.iterdir())


async def test_the_page_needs_no_token_and_holds_nothing_of_the_proxy(
    upstream: Upstream, proxy_factory: Any
) -> None:
    proxy = await proxy_factory(upstream, admin_token=TOKEN)
    page = await ask(proxy, "/ui")
    assert page.status == 200
    assert page.one("content-type") == b"text/html; charset=utf-8"
    assert page.body == UI.joinpath("index.html").read_bytes()
    policy = page.one("content-security-policy").decode()
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert page.one("x-content-type-options") == b"nosniff"
    again = await exchange(proxy.port, "GET", "/ui", None, [("If-None-Match", page.one("etag").decode())])
    assert (again.status, again.body) == (304, b"")
    head = await exchange(proxy.port, "HEAD", "/ui")
    assert (head.status, head.body) == (200, b"")


async def test_every_file_is_served_as_what_it_is(upstream: Upstream, proxy_factory: Any) -> None:
    proxy = await proxy_factory(upstream)
    kinds = {
        "css": b"text/css; charset=utf-8",
        "js": b"text/javascript; charset=utf-8",
        "svg": b"image/svg+xml",
    }
    for name in NAMES:
        if name == "index.html":
            continue
        served = await ask(proxy, f"/ui/{name}")
        assert (served.status, served.one("content-type")) == (200, kinds[name.rpartition(".")[2]])
        assert served.one("content-security-policy")


@pytest.mark.parametrize(
    "path",
    ["/ui/index.html", "/ui/nothing.js", "/ui/../admin/replicas", "/ui/%2e%2e/app.py", "/ui//app.js", "/uix"],
)
async def test_nothing_else_is_served(upstream: Upstream, proxy_factory: Any, path: str) -> None:
    proxy = await proxy_factory(upstream)
    assert (await ask(proxy, path)).status == 404


async def test_other_spellings_and_methods(upstream: Upstream, proxy_factory: Any) -> None:
    proxy = await proxy_factory(upstream)
    moved = await ask(proxy, "/ui/")
    assert (moved.status, moved.one("location")) == (308, b"../ui")
    assert (await exchange(proxy.port, "POST", "/ui", b"")).status == 405
    assert not upstream.requests


def test_the_files_ask_nobody_else_and_parse_no_text() -> None:
    for name in NAMES:
        text = UI.joinpath(name).read_text()
        hosts = set(re.findall(r"(?:https?:)?//[\w.-]+\.\w+", text)) - {"http://www.w3.org"}
        assert not hosts, name
        for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser"):
            assert word not in text, (name, word)
        assert not re.search(r"<[^>]+ (style|on\w+)=", text), name
    page = UI.joinpath("index.html").read_text()
    for target in re.findall(r'(?:src|href)="ui/([^"]+)"', page):
        assert target in NAMES
    for name in NAMES:
        if name.endswith(".js"):
            for target in re.findall(r'from "\./([^"]+)"', UI.joinpath(name).read_text()):
                assert target in NAMES
