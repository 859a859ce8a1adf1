"""A headless Chromium for tests, over its DevTools protocol. Debian's package is ``chromium``."""

from __future__ import annotations

import asyncio
import base64
import itertools
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 30.0


def find() -> str:
    """Its path; fails, and says what to install, where there is none."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"needs one of {', '.join(NAMES)}: apt-get install chromium"
    return found


class Browser:
    """One page. An async context manager; ``directory`` holds its profile."""

    def __init__(self, directory: Path, width: int = 390, height: int = 800) -> None:
        self._directory = directory
        self._size = (width, height)
        self._numbers = itertools.count(1)
        self.console: list[str] = []  # errors that the page logged

    async def __aenter__(self) -> Browser:
        width, height = self._size
        self._process = await asyncio.create_subprocess_exec(
            find(), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--remote-debugging-port=0", f"--user-data-dir={self._directory}", "--no-first-run",
            "--disable-background-networking", f"--window-size={width},{height}", "about:blank",
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        self._http = aiohttp.ClientSession()
        port = await self._port()
        async with self._http.get(f"http://127.0.0.1:{port}/json/list") as response:
            (target,) = [t for t in await response.json() if t["type"] == "page"]
        self._socket = await self._http.ws_connect(
            target["webSocketDebuggerUrl"], max_msg_size=2**26
        )
        for domain in ("Page", "Runtime", "Log"):
            await self.send(f"{domain}.enable")
        await self.size(width, height)
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._socket.close()
        await self._http.close()
        self._process.kill()
        await self._process.wait()

    async def _port(self) -> int:
        file = self._directory / "DevToolsActivePort"
        deadline = time.monotonic() + LIMIT
        while not (file.exists() and (lines := file.read_text().split())):
            assert time.monotonic() < deadline, "Chromium did not start"
            await asyncio.sleep(0.05)
        return int(lines[0])

    async def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its result."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": params})
        async with asyncio.timeout(LIMIT):
            while True:
                said = await self._socket.receive_json()
                self._note(said)
                if said.get("id") == number:
                    assert "error" not in said, said["error"]
                    result: dict[str, Any] = said["result"]
                    return result

    def _note(self, said: Mapping[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.console.append(str(params["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.console.append(params["entry"]["text"])

    async def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = await self.send("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until a JavaScript expression is true."""
        deadline = time.monotonic() + LIMIT
        while not await self.run(f"!!({script})"):
            assert time.monotonic() < deadline, f"never: {script}"
            await asyncio.sleep(0.02)

    async def open(self, url: str) -> None:
        await self.send("Page.navigate", url=url)
        await self.until("document.readyState === 'complete' && location.href !== 'about:blank'")

    async def type(self, text: str) -> None:
        """Into what has the focus, then Enter."""
        await self.send("Input.insertText", text=text)
        for kind in ("keyDown", "keyUp"):
            await self.send(
                "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                windowsVirtualKeyCode=13, text="\r" if kind == "keyDown" else "",
            )  # fmt: skip

    async def size(self, width: int, height: int) -> None:
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip

    async def dark(self, on: bool) -> None:
        feature = {"name": "prefers-color-scheme", "value": "dark" if on else "light"}
        await self.send("Emulation.setEmulatedMedia", features=[feature])

    async def screenshot(self, file: Path) -> None:
        found = await self.send("Page.captureScreenshot")
        file.write_bytes(base64.b64decode(found["data"]))
