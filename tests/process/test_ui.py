"""The live page at ``/ui`` in a headless Chromium, over a loaded topology; one stage is killed."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.process.front import Front, front
from tests.process.harness import send
from tests.process.test_http import Stream

pytestmark = pytest.mark.full

TEXT = "document.getElementById('{}').textContent"
DRAWN = "(p => p.viewBox.baseVal.width === p.clientWidth)(document.getElementById('picture'))"
COUNT = "document.querySelectorAll('{}').length"


@pytest.mark.usefixtures("home")
@pytest.mark.timeout(180)
def test_the_live_page(tmp_path: Path) -> None:
    model = {"name": "toy", "max_tokens": 1024, "layers": 8, "toy_seconds": 0.05}
    decode = {"lanes": 2, "source_slots": 2}
    (tmp_path / "key").write_text("secret\n")
    http = {"api_keys": f"file:{tmp_path / 'key'}"}
    with front(tmp_path, stages=3, model=model, sections={"decode": decode}, http=http) as door:
        asyncio.run(watch_it(door, tmp_path))


async def watch_it(door: Front, directory: Path) -> None:
    async with Browser(directory / "profile") as browser:
        run, until = browser.run, browser.until
        await browser.open(door.url + "/ui")
        await until(TEXT.format("state") + ".startsWith('401')")
        await run("document.getElementById('key').value = 'secret'")
        await until(TEXT.format("state") + ".startsWith('live')")
        assert await run(COUNT.format("#picture g.ready")) == 6  # coordinator, 3, decode, http
        assert await run(COUNT.format(".cell.free")) == 4
        assert "None" in await run(TEXT.format("requests"))

        streams = [Stream(door, True, "x" * 60, 900, key="secret") for _ in range(4)]
        await until(COUNT.format(".request") + " === 4")
        await until(f"{TEXT.format('requests')}.includes('no free lane')")
        await until(COUNT.format(".cell.decode") + " === 2")
        await run("document.querySelector('.request').click()")
        await until(COUNT.format(".fall .span") + " > 3")
        assert "prefill" in await run("document.querySelector('.fall').textContent")
        await browser.screenshot(directory / "phone.png")
        assert await run("document.documentElement.scrollWidth <= innerWidth")

        await browser.size(1280, 1100)
        await until(DRAWN)
        await browser.screenshot(directory / "laptop.png")
        send(door.running.pids["stage-1"], signal.SIGKILL)
        await until(COUNT.format("#picture g.down") + " === 1")
        await until(f"{TEXT.format('problems')}.includes('stage-1')")
        assert "down" in await run(TEXT.format("problems"))
        colour = "getComputedStyle(document.body).backgroundColor"
        light = await run(colour)
        await browser.dark(True)
        assert await run(colour) != light
        await browser.screenshot(directory / "laptop-dark.png")
        await browser.size(390, 1600)
        await until(DRAWN)
        await browser.screenshot(directory / "phone-dark.png")
        assert await run("document.documentElement.scrollWidth <= innerWidth")
        for stream in streams:
            stream.leave(reset=True)
        assert [e for e in browser.console if "401" not in e] == []
