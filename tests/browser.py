"""A real browser without a window, and pages for it: chromium and chromedriver as Debian has them, driven by selenium."""

from __future__ import annotations

import functools
import http.server
import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

WIDTHS = (390, 1280, 1920)
OPTIONS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking")
MISSING = "no browser to test pages with: apt-get install -y chromium chromium-driver (as root), pip install selenium"


@contextmanager
def browser() -> Iterator[Any]:
    """A selenium driver; skips the test where there is no browser."""
    webdriver = pytest.importorskip("selenium.webdriver", reason=MISSING)
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip(MISSING)
    options = webdriver.ChromeOptions()
    for option in OPTIONS:
        options.add_argument(option)
    options.binary_location = chromium
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    running.set_script_timeout(60)
    try:
        yield running
    finally:
        running.quit()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves a folder and writes nothing."""

    def log_message(self, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """A folder under an address of this machine."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def resize(driver: Any, width: int, height: int = 900) -> None:
    """The size of the window, without scroll bars."""
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def wait_until(driver: Any, script: str, seconds: float = 30.0) -> None:
    """Wait until a JavaScript expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, seconds, 0.05).until(
        lambda d: d.execute_script(f"return Boolean({script})"), f"in vain: {script[:300]}"
    )


def complaints(driver: Any) -> list[str]:
    """What the console has been told since the last call: errors and warnings."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]


def requests(driver: Any) -> list[str]:
    """Addresses asked for since the last call, but for data in the page itself."""
    messages = [json.loads(entry["message"])["message"] for entry in driver.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in asked if not url.startswith(("data:", "blob:", "about:", "chrome:"))]


#: What a screen reader and a keyboard need, as a list of what is wrong.
BASICS = """
const wrong = [];
const seen = (e) => e.offsetParent !== null;
for (const img of document.querySelectorAll("img")) if (!img.alt) wrong.push("img without alt: " + img.src);
for (const e of document.querySelectorAll("[role=img]")) if (!e.getAttribute("aria-label")) wrong.push("role=img without a label");
for (const e of document.querySelectorAll("main select, main input, main button")) {
  const name = e.getAttribute("aria-label") || e.closest("label")?.textContent || e.textContent || e.title;
  if (seen(e) && !name.trim()) wrong.push("control without a name: " + e.outerHTML.slice(0, 80));
}
const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
for (const id of new Set(ids)) if (id && ids.filter((x) => x === id).length > 1 && !id.startsWith("__")) wrong.push("id twice: " + id);
if (!document.documentElement.lang) wrong.push("no language");
if (!document.title) wrong.push("no title");
if (document.documentElement.scrollWidth > window.innerWidth) wrong.push("wider than the window: " + document.documentElement.scrollWidth);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] > 0.9) return c; } return [255, 255, 255]; };
for (const e of document.querySelectorAll("main p, main li, main td, main th, main span, main label, main button, main output, main h1, main h2, main h3")) {
  if (!seen(e) || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()) || e.disabled || e.closest(".walk section:not(.now), svg, pre, .headerlink")) continue;
  const ink = rgb(getComputedStyle(e).color);
  if (ink.length > 3 && ink[3] < 1) continue;
  const [a, b] = [light(ink), light(behind(e))];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) wrong.push("contrast " + contrast.toFixed(1) + ": " + e.textContent.trim().slice(0, 40));
}
return [...new Set(wrong)];
"""


def faults(driver: Any) -> list[str]:
    """Basics of a page that anybody can use: names, alternatives to pictures, contrast of text, no sideways scrolling."""
    found: list[str] = driver.execute_script(BASICS)
    return found
