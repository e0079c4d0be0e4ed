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
    requested = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    return [url for url in requested if not url.startswith(("data:", "blob:", "about:", "chrome:"))]


#: What a screen reader, a keyboard and weak eyes need, as a list of what is wrong.
BASICS = (Path(__file__).parent / "page_basics.js").read_text()


def faults(driver: Any) -> list[str]:
    """Basics of a page that anybody can use: names, alternatives to pictures, contrast of text, no sideways scrolling."""
    found: list[str] = driver.execute_script(BASICS)
    return found
