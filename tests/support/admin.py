"""What an operator does and sees: /admin with its token, of proxies started with `admin_token=TOKEN`."""

import json
from typing import Any

from proxy.app import Proxy
from tests.support.client import exchange
from tests.support.eventually import eventually
from tests.support.http import Response

TOKEN = "the-operators-token"


async def admin(proxy: Proxy, method: str, path: str, body: Any = None) -> Response:
    """One call under /admin/replicas; `body` is sent as JSON."""
    raw = None if body is None else json.dumps(body).encode()
    credentials = [("Authorization", f"Bearer {TOKEN}")]
    return await exchange(proxy.port, method, f"/admin/replicas{path}", raw, credentials)


async def replicas(proxy: Proxy) -> dict[str, dict[str, Any]]:
    """What is told of each replica, by its name."""
    told = (await admin(proxy, "GET", "")).json()["replicas"]
    return {each["name"]: each for each in told}


async def are_up(proxy: Proxy, *names: str) -> None:
    """Wait until these are the replicas, all of them in use."""

    async def so() -> bool:
        known = await replicas(proxy)
        return known.keys() == set(names) and all(each["state"] == "up" for each in known.values())

    await eventually(so, f"{names} are up")
