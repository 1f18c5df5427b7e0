"""A real Chromium, driven over its DevTools protocol: what it asked for, what it complained of, and pictures."""

from __future__ import annotations

import asyncio
import base64
import itertools
import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from localcluster import apt
from tests.machine import PATIENCE

AXE = Path(__file__).parent / "axe"
_OPTIONS = ("--headless=new", "--remote-debugging-port=0", "--no-first-run", "--disable-gpu", "--hide-scrollbars")
_QUIET = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-default-apps")


def program(log: Path) -> str:
    """Debian's, installed if it is missing. Raises ClusterError where apt can't: a tool that is missing is no reason to
    pass."""
    if (found := shutil.which("chromium")) is None:
        apt.install(["chromium"], log)
        found = shutil.which("chromium")
    assert found is not None
    return found


def axe(folder: Path) -> str:
    """axe-core's source, from the npm registry by its lock file. `folder` is for its files."""
    if shutil.which("npm") is None:
        apt.install(["npm"], folder / "apt.log")
    for file in AXE.iterdir():
        shutil.copy(file, folder)
    subprocess.run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], cwd=folder, check=True)
    return (folder / "node_modules/axe-core/axe.min.js").read_text()


class Browser:
    """One page of it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket, self._numbers = socket, itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._loaded = asyncio.Event()
        self.asked: list[str] = []
        """The address of each request."""
        self.complaints: list[str] = []
        """What stands in the console, and requests that failed."""

    async def listen(self) -> None:
        """What the browser says, to its end."""
        async for message in self._socket:
            told = message.json()
            if "id" in told:
                self._answers.pop(told["id"]).set_result(told)
            else:
                self._heard(told["method"], told["params"])

    def _heard(self, method: str, told: dict[str, Any]) -> None:
        if method == "Page.loadEventFired":
            self._loaded.set()
        elif method == "Network.requestWillBeSent":
            self.asked.append(told["request"]["url"])
        elif method in {
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Network.loadingFailed",
        }:
            self.complaints.append(str(told))

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        answer = await asyncio.wait_for(self._answers[number], PATIENCE)
        assert "error" not in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def open(self, address: str) -> None:
        """Until it is loaded."""
        self._loaded.clear()
        await self.send("Page.navigate", url=address)
        await asyncio.wait_for(self._loaded.wait(), PATIENCE)

    async def value(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is awaited."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def look(self, *, width: int, dark: bool, height: int = 900) -> None:
        """As a window of that width, in one of the themes."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[scheme])
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        await self.send("Emulation.setDeviceMetricsOverride", **metrics)

    async def picture(self, *, whole: bool = True) -> bytes:
        """A PNG: of the whole page, or of what a window shows."""
        found = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])


@asynccontextmanager
async def browser(folder: Path) -> AsyncIterator[Browser]:
    """One that is ended at the end. `folder` is for its files."""
    options = [*_OPTIONS, *_QUIET, f"--user-data-dir={folder}", *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    process = await asyncio.create_subprocess_exec(
        program(folder / "apt.log"),
        *options,
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "HOME": str(folder)},
    )
    try:
        async with asyncio.timeout(PATIENCE):
            while not (told := folder / "DevToolsActivePort").exists() or "\n" not in told.read_text():
                assert process.returncode is None, "chromium has ended"
                await asyncio.sleep(0.05)
        where = f"http://127.0.0.1:{told.read_text().split()[0]}"
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{where}/json/list") as listed:
                page = next(one for one in await listed.json() if one["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                driven = Browser(socket)
                listening = asyncio.create_task(driven.listen())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await driven.send(f"{domain}.enable")
                yield driven
                listening.cancel()
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()
