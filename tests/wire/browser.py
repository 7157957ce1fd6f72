"""Headless Chromium through chromedriver's own HTTP protocol (W3C WebDriver): the few commands the page's tests need."""

import base64
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

_ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # WebDriver's name for a reference to an element
_FLAGS = (
    "--headless=new",
    "--no-sandbox",  # a test often runs as root, for whom Chromium's sandbox does not start
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


def is_installed() -> bool:
    return shutil.which("chromedriver") is not None and shutil.which("chromium") is not None


class Browser:
    """One window. Elements are named by CSS selectors; every wait has an end."""

    def __init__(self, http: httpx.Client, session: str) -> None:
        self._http = http
        self._session = session

    def open(self, url: str) -> None:
        self._post("url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """The value of a function body in the page."""
        return self._post("execute/sync", script=script, args=list(arguments))

    def text(self, selector: str) -> str:
        return str(self.run("return document.querySelector(arguments[0])?.textContent ?? ''", selector))

    def click(self, selector: str) -> None:
        self._post(f"element/{self._find(selector)}/click")

    def type(self, selector: str, text: str, *, clear: bool = False) -> None:
        element = self._find(selector)
        if clear:
            self._post(f"element/{element}/clear")
        self._post(f"element/{element}/value", text=text)

    def press(self, key: str) -> None:
        """A key, to whatever has the focus."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._post("actions", actions=[{"type": "key", "id": "keyboard", "actions": keys}])

    def until(self, condition: str, *arguments: Any, seconds: float = 20.0) -> Any:
        """The first true value of the JavaScript expression `condition`. Raises AssertionError when none comes."""
        script = f"return ({condition})"
        end = time.monotonic() + seconds
        while not (value := self.run(script, *arguments)):
            assert time.monotonic() < end, f"never true: {condition}\n{self.text('body')[-2000:]}"
        return value

    def until_text(self, selector: str, part: str, seconds: float = 20.0) -> None:
        condition = "document.querySelector(arguments[0])?.textContent.includes(arguments[1])"
        self.until(condition, selector, part, seconds=seconds)

    def resize(self, width: int, height: int) -> None:
        self._post("window/rect", width=width, height=height)

    def dark(self, is_dark: bool) -> None:
        value = "dark" if is_dark else "light"
        media = {"features": [{"name": "prefers-color-scheme", "value": value}]}
        self._post("goog/cdp/execute", cmd="Emulation.setEmulatedMedia", params=media)

    def screenshot(self, path: Path) -> None:
        answer = self._http.get(f"/session/{self._session}/screenshot")
        path.write_bytes(base64.b64decode(answer.json()["value"]))

    def log(self) -> list[str]:
        """What the page has written to its console since the last time."""
        return [entry["message"] for entry in self._post("se/log", type="browser")]

    def _find(self, selector: str) -> str:
        return str(self._post("element", using="css selector", value=selector)[_ELEMENT])

    def _post(self, command: str, **arguments: Any) -> Any:
        answer = self._http.post(f"/session/{self._session}/{command}", json=arguments)
        value = answer.json()["value"]
        assert answer.status_code == 200, f"{command} {arguments}: {value['error']}: {value['message']}"
        return value


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """A new window with an empty profile in the folder `profile`; gone at the end, and its processes with it."""
    with _driver() as http:
        options = {"args": [*_FLAGS, f"--user-data-dir={profile}"], "binary": shutil.which("chromium")}
        wanted = {"browserName": "chrome", "goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        answer = http.post("/session", json={"capabilities": {"alwaysMatch": wanted}}).json()["value"]
        assert "sessionId" in answer, answer
        try:
            yield Browser(http, answer["sessionId"])
        finally:
            http.delete(f"/session/{answer['sessionId']}")


@contextmanager
def _driver() -> Iterator[httpx.Client]:
    process = subprocess.Popen(
        ["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    try:
        port = _port_in(process.stdout.readline)
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False) as http:
            yield http
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def _port_in(read_line: Callable[[], str]) -> int:
    while line := read_line():
        if "started successfully on port" in line:
            return int(line.rstrip().rstrip(".").rsplit(" ", 1)[1])
    raise AssertionError("chromedriver did not start")
