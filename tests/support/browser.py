"""A real Chromium without a window, driven through its own DevTools protocol.

What the page writes to its console, and what it fails to load, is kept in `complaints`.
"""

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.eventually import eventually

BINARY = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
"""Where one is installed."""
START_SECONDS = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # tests run as root in containers
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--no-first-run",
    "--remote-debugging-port=0",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
)


class Page:
    """One tab."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []
        """Every URL that was asked for."""
        self._socket = socket
        self._number = 0
        self._waiting: dict[int, asyncio.Future[Any]] = {}

    async def listen(self) -> None:
        """Take in what the browser tells, until it ends."""
        async for message in self._socket:
            told = json.loads(message.data)
            if (number := told.get("id")) is not None:
                waiting = self._waiting.pop(number)
                if not waiting.done():
                    waiting.set_result(told)
            else:
                self._hear(told["method"], told["params"])

    def _hear(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            said = [each.get("value", each.get("description", "")) for each in params["args"]]
            self.complaints.append(" ".join(map(str, said)))
        elif method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    async def call(self, method: str, **params: Any) -> Any:
        """One command of the protocol."""
        self._number += 1
        waiting = self._waiting[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": self._number, "method": method, "params": params})
        told = await asyncio.wait_for(waiting, START_SECONDS)
        assert "error" not in told, told
        return told["result"]

    async def run(self, script: str) -> Any:
        """The value of an expression, awaited if it is a promise."""
        told = await self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def open(self, url: str) -> None:
        """Go somewhere."""
        await self.call("Page.navigate", url=url)
        await self.until(f"location.href === {url!r} && document.readyState === 'complete'")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true."""

        async def so() -> bool:
            return bool(await self.run(condition))

        await eventually(so, condition, within=START_SECONDS)

    async def resize(self, width: int, height: int, *, dark: bool = False, scale: float = 1.0) -> None:
        """Be a screen of this size and preference."""
        size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": width < 600}
        await self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])

    async def press(self, key: str) -> None:
        """Press a key: Tab, Enter, Escape."""
        code = {"Tab": 9, "Enter": 13, "Escape": 27}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            told = text if kind == "keyDown" else {}
            await self.call(
                "Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **told
            )

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.call("Input.insertText", text=text)

    async def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Keep a picture of the page as PNG."""
        told = await self.call("Page.captureScreenshot", captureBeyondViewport=whole)
        await asyncio.to_thread(path.write_bytes, base64.b64decode(told["data"]))


@asynccontextmanager
async def browsing(profile: Path) -> AsyncIterator[Page]:
    """A browser with one empty tab; `profile` is a directory of its own."""
    assert BINARY is not None
    process = await asyncio.create_subprocess_exec(
        *(BINARY, *_FLAGS, f"--user-data-dir={profile}", "about:blank"),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = profile / "DevToolsActivePort"
        await eventually(
            lambda: port.exists() and "\n" in port.read_text(), "Chromium listens", within=START_SECONDS
        )
        host = f"http://127.0.0.1:{port.read_text().splitlines()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{host}/json/list") as told:
                tab = next(each for each in await told.json() if each["type"] == "page")
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                listening = asyncio.create_task(page.listen())
                for part in ("Page", "Runtime", "Log", "Network"):
                    await page.call(f"{part}.enable")
                try:
                    yield page
                finally:
                    listening.cancel()
                    await asyncio.gather(listening, return_exceptions=True)
    finally:
        process.terminate()
        await process.wait()
