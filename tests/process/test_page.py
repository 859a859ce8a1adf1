"""The page at ``/`` in a headless Chromium: it streams, stops, shows errors and usage."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.browser import Browser
from tests.process.front import Front, front

pytestmark = pytest.mark.full

TURNS = "document.querySelectorAll('.{}').length"


@pytest.mark.usefixtures("home")
@pytest.mark.timeout(180)
def test_the_page_works_in_a_browser(tmp_path: Path) -> None:
    model = {"name": "toy", "max_tokens": 1024, "layers": 8, "toy_seconds": 0.02}
    with front(tmp_path, model=model) as door:
        asyncio.run(try_it(door, tmp_path))
        door.idle()


async def try_it(door: Front, directory: Path) -> None:
    async with Browser(directory / "profile") as browser:
        run, until = browser.run, browser.until
        await browser.open(door.url + "/")
        await until("document.getElementById('model').value === 'toy'")
        await run("document.getElementById('max_tokens').value = 40")
        await browser.type("hello")
        await until("(document.querySelector('.assistant') || {textContent: ''}).textContent")
        assert await run(TURNS.format("usage")) == 0  # it streams: text before the end
        await until(TURNS.format("usage") + " === 1")
        usage = await run("document.querySelector('.usage').textContent")
        assert "length" in usage and "+ 40 tokens" in usage and "tokens/s" in usage

        await run("document.getElementById('max_tokens').value = 400")
        await browser.type("hello again")
        await until("(document.querySelectorAll('.assistant')[1] || {textContent: ''}).textContent")
        await run("document.getElementById('send').click()")  # it says Stop now
        await until(TURNS.format("usage") + " === 2")
        assert "stopped" in await run("document.querySelectorAll('.usage')[1].textContent")

        await run("document.getElementById('max_tokens').value = 4000")
        await browser.type("too long")
        await until(TURNS.format("error") + " === 1")
        error = await run("document.querySelector('.error').textContent")
        assert error.startswith("400: ") and "4000" in error
        await browser.screenshot(directory / "light.png")

        assert await run("document.documentElement.scrollWidth <= innerWidth")
        colour = "getComputedStyle(document.body).backgroundColor"
        light = await run(colour)
        await browser.dark(True)
        assert await run(colour) != light
        await browser.screenshot(directory / "dark.png")
        await run("document.getElementById('fresh').click()")
        assert await run(TURNS.format("turn")) == 0
        assert [e for e in browser.console if "400" not in e] == []
