"""The pages in a real Chromium: nothing in its console, nothing from elsewhere, in both themes and on a phone.

With TFGPU_PICTURES=FOLDER it leaves a picture of each page there; docs/images has two of them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.unit.describe.broken import BROKEN, Broken, known
from tests.unit.ui import planted
from tests.unit.ui.callers import Api, page
from tests.unit.ui.chromium import Browser, axe, browser
from tests.unit.ui.hostile import HOSTILE, poisoned_job
from tests.unit.ui.planted import ALL, TRAINS, Planted

from tfgpujob import names
from tfgpujob.core.observed.trim import trim_job, trim_pod
from tfgpujob.history.records import Last, freeze, thaw
from tfgpujob.ui import server
from tfgpujob.ui.seen import Seen

pytestmark = pytest.mark.deep

WIDTHS = (375, 768, 1200, 1600)
PAGES = {
    "list": "",
    "job": "jobs/research/resnet50-imagenet",
    "failed": "jobs/biology/unet-cells",
    "compare": "compare?job=research/resnet50-imagenet&job=research/resnet50-lr-04&job=biology/unet-cells",
}
PICTURES = os.environ.get("TFGPU_PICTURES")
CONTRAST = """
(() => {
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const light = rgb => 0.2126 * channel(rgb[0]) + 0.7152 * channel(rgb[1]) + 0.0722 * channel(rgb[2]);
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const behind = e => { for (; e; e = e.parentElement) {
    const found = parts(getComputedStyle(e).backgroundColor);
    if (found.length < 4 || found[3] > 0) return found;
  } return [255, 255, 255]; };
  const faint = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const style = getComputedStyle(e);
    if (!own || !e.getClientRects().length || style.clipPath !== "none" || e.tagName === "OPTION") continue;
    const ink = e instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(parts(ink)), light(behind(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) faint.push(`${e.tagName} ${e.textContent.slice(0, 30)} ${ink}`);
  }
  return faint;
})()
"""
"""Elements whose text has less contrast than WCAG AA asks for."""
OVER = """
document.documentElement.scrollWidth <= innerWidth ? [] : [document.documentElement.scrollWidth,
  ...[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth + 1)
  .map(e => `${e.tagName}.${e.className.baseVal ?? e.className} ${e.textContent.slice(0, 30)}`)]
"""
"""Elements that make the page wider than its window."""
AXE = """
axe.run().then(found => found.violations.filter(one => ["serious", "critical"].includes(one.impact))
  .map(one => `${one.id}: ${one.nodes[0].html.slice(0, 200)}`))
"""
SEEN = """
(text => {
  const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const at = texts.currentNode.data.indexOf(text), range = document.createRange();
    if (at < 0) continue;
    range.setStart(texts.currentNode, at);
    range.setEnd(texts.currentNode, at + text.length);
    const box = range.getBoundingClientRect();
    return box.width > 0 && box.bottom <= innerHeight;
  }
  return false;
})
"""
"""Whether a text stands in what a window shows before anyone scrolls."""


@pytest.fixture
async def driven(tmp_path: Path) -> AsyncIterator[Browser]:
    async with browser(tmp_path) as found:
        yield found


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Planted:
    monkeypatch.setattr(server, "now", lambda: planted.NOW)
    return Planted()


async def test_pages_are_whole_in_both_themes_at_every_width(driven: Browser, source: Planted) -> None:
    async with server.serving(source, 0) as address:
        for name, path in PAGES.items():
            for width in WIDTHS:
                for dark in (False, True):
                    await driven.look(width=width, dark=dark)
                    await driven.open(address + path)
                    where = f"{name} {width} {'dark' if dark else 'light'}"
                    assert await driven.value(OVER) == [], where
                    paper = await driven.value("getComputedStyle(document.body).backgroundColor")
                    assert paper == ("rgb(21, 23, 25)" if dark else "rgb(253, 253, 252)")
                    assert await driven.value(CONTRAST) == [], where
                    if PICTURES:
                        picture = await driven.picture(whole=True)
                        Path(PICTURES, f"{where.replace(' ', '-')}.png").write_bytes(picture)
        assert driven.complaints == []
        assert {urlsplit(asked).netloc for asked in driven.asked if not asked.startswith("data:")} == {
            urlsplit(address).netloc
        }


async def test_axe_finds_nothing_serious_on_any_page(
    driven: Browser, source: Planted, tmp_path_factory: pytest.TempPathFactory
) -> None:
    program = axe(tmp_path_factory.mktemp("axe"))
    async with server.serving(source, 0) as address, page(Api({}), None) as client:
        pages = {**{name: address + path for name, path in PAGES.items()}, "login": str(client.make_url("/"))}
        for name, url in pages.items():
            for dark in (False, True):
                await driven.look(width=375, dark=dark)
                await driven.open(url)
                await driven.value(f"{program};0")
                assert await driven.value(AXE) == [], (name, dark)
                assert await driven.value(OVER) == [], name
        assert await driven.value("document.querySelector('h1').textContent") == "Log in"
        assert await driven.value(CONTRAST) == []
        await driven.value("document.querySelector('main').append(new Image(9, 9))")
        assert await driven.value(AXE) != [], "a picture without a text is found"


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.title)
async def test_the_cause_stands_on_the_first_screen(
    driven: Browser, monkeypatch: pytest.MonkeyPatch, broken: Broken
) -> None:
    """Also an hour after the job was deleted."""
    found, pods, events, nodes, now = await asyncio.to_thread(known, broken)
    seen = [Seen(job=found, pods=pods, events=events, nodes=nodes)]
    if broken.title != "The operator is away":  # then it keeps nothing
        record = freeze(Last(trim_job(found), [trim_pod(pod) for pod in pods], now))
        kept = thaw(record.content, record.seen)
        seen.append(Seen(job=kept.job, logs=kept.logs))
    for one, at in zip(seen, (now, now + timedelta(hours=1)), strict=False):
        monkeypatch.setattr(server, "now", lambda at=at: at)
        source = Planted([one])
        async with server.serving(source, 0) as address:
            for width, height in ((375, 667), (1200, 900)):
                await driven.look(width=width, dark=False, height=height)
                await driven.open(f"{address}jobs/{next(iter(source.known))}")
                assert await driven.value(f"{SEEN}({json.dumps(broken.cause)})"), (width, names.GONE in one.job)
            await driven.look(width=375, dark=False, height=40)
            assert not await driven.value(f"{SEEN}({json.dumps(broken.cause)})"), "no screen is so low"


async def test_it_is_used_by_keyboard_alone(driven: Browser, source: Planted) -> None:
    async with server.serving(source, 0) as address:
        await driven.look(width=1200, dark=False)
        await driven.open(address)
        seen = []
        for _ in range(20):
            for kind in ("keyDown", "keyUp"):
                await driven.send("Input.dispatchKeyEvent", type=kind, key="Tab", code="Tab", windowsVirtualKeyCode=9)
            focus = "(e => [e.tagName, e.textContent.trim(), getComputedStyle(e).outlineStyle])(document.activeElement)"
            seen.append(await driven.value(focus))
        links = [text for tag, text, _ in seen if tag == "A"]
        assert links[:2] == ["To the content", "resnet50-imagenet"]
        assert {tag for tag, _, _ in seen} >= {"A", "SELECT", "INPUT", "BUTTON"}
        assert [style for tag, _, style in seen if tag != "BODY" and style == "none"] == [], (
            "what has the focus shows it"
        )


async def test_a_page_that_is_live_follows_its_job(driven: Browser, source: Planted) -> None:
    key = "research/resnet50-imagenet"
    async with server.serving(source, 0) as address:
        await driven.open(f"{address}jobs/{key}")
        await driven.value("document.getElementById('whole-yaml').open = true")
        source.known[key] = planted.FAILED
        await driven.value("refresh()")
        assert "unet-cells" in await driven.value("document.querySelector('h1').textContent")
        assert await driven.value("document.getElementById('whole-yaml').open") is True, "what one has opened stays so"
        assert await driven.value("'live' in document.body.dataset") is False, "what has ended is not asked again"
        await driven.open(address)
        await driven.value("document.querySelector('main [type=checkbox]').click(), refresh()")
        assert await driven.value("document.querySelector('main [type=checkbox]').checked"), (
            "who is choosing is not disturbed"
        )
        assert driven.complaints == []
    await driven.value(
        "document.querySelector('main [type=checkbox]').click(), document.activeElement.blur(), refresh()"
    )
    assert await driven.value("document.getElementById('stale').hidden") is False, "the server is gone, and it says so"


@pytest.mark.parametrize("text", HOSTILE, ids=lambda text: ascii(text[:20]))
async def test_what_others_wrote_runs_nowhere(driven: Browser, text: str) -> None:
    """Their browser, and not only our reading of the page, says so."""
    source = Planted([*ALL[1:], TRAINS])
    source.known["research/resnet50-imagenet"] = poisoned_job(TRAINS, text)
    async with server.serving(source, 0) as address:
        await driven.look(width=375, dark=False)
        for path in PAGES.values():
            await driven.open(address + path)
            assert await driven.value(OVER) == []
            assert await driven.value("document.scripts.length") == 1
        assert driven.complaints == []
        assert {urlsplit(asked).hostname for asked in driven.asked if not asked.startswith("data:")} == {"127.0.0.1"}
