"""Drives headless Chromium by the WebDriver protocol, with nothing but the standard library."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

_QUIET: Final = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
_WITHIN_S: Final = 60


class Browser:
    """One page at a time; what the page logs and asks the network for can be asked afterwards."""

    def __init__(self, driver: str, session: str) -> None:
        self._at = f"{driver}/session/{session}"

    def ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """Send a command; its value is the answer's."""
        return _ask(f"{self._at}/{path}", body)

    def open(self, page: Path) -> None:
        self.ask("url", {"url": page.resolve().as_uri()})

    def script(self, text: str, *arguments: Any) -> Any:
        """Run a function's body in the page: the driver's own, which no policy of a page stops."""
        return self.ask("execute/sync", {"script": text, "args": list(arguments)})

    def devtools(self, command: str, **parameters: Any) -> Any:
        """Send a command of Chromium's own protocol."""
        return self.ask("goog/cdp/execute", {"cmd": command, "params": parameters})

    def press(self, key: str) -> None:
        """Press and release one key on what has the focus."""
        keys = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.ask("actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def sized(self, width: int, height: int, *, scheme: str = "light", media: str = "") -> None:
        """Show the page on a screen of this size, in light or dark, or as printed."""
        self.devtools("Emulation.setDeviceMetricsOverride", width=width, height=height,
                      deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        wanted = [{"name": "prefers-color-scheme", "value": scheme}]
        self.devtools("Emulation.setEmulatedMedia", media=media, features=wanted)

    def screenshot(self, whole: bool = True) -> bytes:
        """PNG of the whole page, or of what a screen shows."""
        found = self.devtools("Page.captureScreenshot", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def printed(self) -> bytes:
        """PDF of the page."""
        return base64.b64decode(self.devtools("Page.printToPDF", preferCSSPageSize=True)["data"])

    def messages(self) -> list[str]:
        """What the console said since it was asked last: errors, refusals of the policy."""
        return [entry["message"] for entry in self.ask("se/log", {"type": "browser"})]

    def requests(self) -> list[str]:
        """Addresses that pages asked for since this was asked last."""
        events = [
            json.loads(entry["message"])["message"]
            for entry in self.ask("se/log", {"type": "performance"})
        ]
        return [
            event["params"]["request"]["url"]
            for event in events
            if event["method"] == "Network.requestWillBeSent"
        ]


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium; skips where it or its driver is not installed."""
    program = shutil.which("chromium") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("no Chromium: apt install chromium chromium-driver")
    with tempfile.TemporaryDirectory() as profile:
        server = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        try:
            at = _address(server)
            options = {
                "binary": program,
                "args": [*_QUIET, f"--user-data-dir={profile}", "--window-size=1280,900"],
            }
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"},
            }
            made = _ask(f"{at}/session", {"capabilities": {"alwaysMatch": wanted}})
            browser = Browser(at, made["sessionId"])
            try:
                browser.ask("url", {"url": "about:blank"})  # what a new tab shows loads things
                browser.messages()
                browser.requests()
                yield browser
            finally:
                urllib.request.urlopen(
                    urllib.request.Request(f"{at}/session/{made['sessionId']}", method="DELETE"),
                    timeout=_WITHIN_S,
                ).close()
        finally:
            server.terminate()
            server.wait(_WITHIN_S)


def _address(server: subprocess.Popen[str]) -> str:
    """Where the driver listens: it takes a free port and says which."""
    assert server.stdout is not None
    for line in server.stdout:
        said = re.search(r"started successfully on port (\d+)", line)
        if said:
            return f"http://127.0.0.1:{said[1]}"
    raise AssertionError("chromedriver did not start")


def _ask(address: str, body: dict[str, Any] | None) -> Any:
    data = json.dumps(body or {}).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S) as answer:
            return json.load(answer)["value"]
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{address}: {error.read().decode()[:500]}") from error
