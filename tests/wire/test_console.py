"""The page at / in a real browser: what people see and do, by mouse and by keyboard."""

import asyncio
from collections.abc import Iterator

import httpx
import pytest

from gateway.settings import Settings
from tests.fakes.console_server import serving
from tests.fakes.front import FrontApp
from tests.unit.openai_api.scripted import ScriptedModel, tokens_of
from tests.wire.browser import ENTER, ESCAPE, Browser, browser, is_installed

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not is_installed(), reason="needs chromium and chromedriver (Debian: chromium-driver)"),
]
KEY = "sk-of-the-page"
MARKUP = "<img src=x onerror=\"document.title='stolen'\">"
ANSWER = '[...document.querySelectorAll(".message.assistant .text")].at(-1)?.textContent'
IS_IDLE = '!document.querySelector("#send").hidden'


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("profile")) as opened:
        opened.resize(1280, 900)
        yield opened


def echoing(name: str) -> ScriptedModel:
    """Answers with the last message."""

    def script(request: object) -> list[int]:
        prompt: list[int] = request.prompt  # type: ignore[attr-defined]
        said = (
            model.tokenizer.decode_window(prompt, False)
            .split("<|im_start|>")[-2]
            .partition("\n")[2]
            .removesuffix("<|im_end|>\n")
        )
        return tokens_of(f"You said: {said}")

    model = ScriptedModel(script, name)
    return model


@pytest.fixture
def front() -> FrontApp:
    return FrontApp(chat=echoing("chat"))


@pytest.fixture
def url(front: FrontApp) -> Iterator[str]:
    with serving(front) as where:
        yield where


def open_chat(page: Browser, url: str) -> None:
    page.open("about:blank")
    page.open(f"{url}/#chat")
    page.until("document.querySelector('#model').value")


def test_a_message_is_answered_as_it_streams_and_measured(page: Browser, url: str) -> None:
    open_chat(page, url)
    assert page.run("return [...document.querySelectorAll('#model option')].map(o => o.value)") == ["chat", "other"]
    page.type("#prompt", "good day")
    page.press(ENTER)
    page.until(f"{IS_IDLE} && {ANSWER} === 'You said: good day'")
    note = page.text(".message.assistant .note")
    assert "first token" in note
    assert "tokens/s" in note
    assert "complete" in note
    assert page.text("#figure-answer") == "19"  # a token a byte, and the end
    assert page.text("#chat-status") == "The answer is complete."


def test_the_model_is_sent_the_whole_conversation_and_the_parameters(page: Browser, url: str, front: FrontApp) -> None:
    open_chat(page, url)
    page.type("#system", "be brief")
    page.type("#temperature", "0.5")
    page.type("#max_tokens", "40", clear=True)
    page.type("#seed", "7")
    for count, text in enumerate(("one", "two"), 1):
        page.type("#prompt", text)
        page.click("#send")
        page.until(f"{IS_IDLE} && {ANSWER} === 'You said: {text}'")
        assert page.run("return document.querySelectorAll('.message').length") == 2 * count
    request = front.chat.requests[-1]
    prompt = front.chat.tokenizer.decode_window(request.prompt, False)
    for part in ("be brief", "one", "You said: one", "two"):
        assert part in prompt
    sampling = request.sampling
    assert (sampling.temperature, sampling.max_tokens, sampling.seed) == (0.5, 40, 7)


@pytest.mark.parametrize("how", ["button", "escape"])
def test_stopping_ends_the_answer_here_and_at_the_server(page: Browser, url: str, front: FrontApp, how: str) -> None:
    open_chat(page, url)
    front.chat.gate = asyncio.Semaphore(8)  # and then no token more
    page.type("#prompt", "hello")
    page.press(ENTER)
    page.until(f"{ANSWER} === 'You said'")
    if how == "button":
        page.click("#stop")
    else:
        page.press(ESCAPE)
    page.until(IS_IDLE)
    assert "stopped" in page.text(".message.assistant .note")
    front.chat.gate = None
    page.type("#prompt", "next")
    page.press(ENTER)
    page.until(f"{IS_IDLE} && {ANSWER} === 'You said: next'")
    assert front.chat.num_aborted == 1
    assert front.chat.num_running == 0


def test_trying_again_replaces_the_answer_and_clearing_forgets(page: Browser, url: str, front: FrontApp) -> None:
    open_chat(page, url)
    page.type("#prompt", "hello")
    page.press(ENTER)
    page.until(f"{IS_IDLE} && {ANSWER} === 'You said: hello'")
    page.click("#again")
    page.until(f"{IS_IDLE} && {ANSWER} === 'You said: hello'")
    assert page.run("return document.querySelectorAll('.message').length") == 2
    assert len(front.chat.requests) == 2
    assert front.chat.requests[0].prompt == front.chat.requests[1].prompt
    page.click("#clear")
    assert page.run("return document.querySelectorAll('.message').length") == 0


def test_what_a_model_says_never_becomes_markup(page: Browser, url: str) -> None:
    open_chat(page, url)
    page.type("#prompt", MARKUP)
    page.press(ENTER)
    page.until(f"{IS_IDLE} && {ANSWER}?.startsWith('You said:')")
    assert MARKUP in page.text(".message.assistant .text")
    assert page.run("return document.querySelectorAll('#transcript img').length") == 0
    assert page.run("return document.title") != "stolen"


def test_a_refusal_is_shown_in_the_server_s_words(page: Browser, url: str, front: FrontApp) -> None:
    open_chat(page, url)
    front.chat.refuse_after = 0
    page.type("#prompt", "hello")
    page.press(ENTER)
    page.until_text(".message.assistant .error", "the queue is full")
    page.until(IS_IDLE)


def test_models_are_listed_loaded_and_unloaded(page: Browser, url: str, front: FrontApp) -> None:
    page.open(f"{url}/#models")
    page.until_text("#repository", "ident")
    assert "UNAVAILABLE" in page.text("#repository")
    assert "it is broken" in page.text("#repository")
    page.click('[data-action="Unload two 1"]')
    page.until_text("#repository-status", "two is unloaded")
    page.click('[data-action="Load absent "]')
    page.until_text("#repository-status", "absent is loaded")
    page.type("#load-name", "nope")
    page.press(ENTER)
    page.until_text("#repository-status", "failed to load 'nope'")
    repository = front.kserve.repository
    assert repository.unloaded == [("two", False)]  # type: ignore[attr-defined]
    assert repository.loaded[0][0] == "absent"  # type: ignore[attr-defined]


def try_model(page: Browser, url: str, model: str) -> None:
    page.open("about:blank")
    page.open(f"{url}/#models")
    page.until_text("#repository", model)
    page.click(f'[data-action="Try {model} 1"]')
    page.until_text("#try-title", f"Try {model}")


def test_any_model_can_be_tried_from_its_metadata(page: Browser, url: str) -> None:
    try_model(page, url, "ident")
    assert page.run("return document.querySelector('#shape-0').value") == "1, 4"
    page.type("#data-0", "[1, 2, 3.5, -4]", clear=True)
    page.click("#run")
    page.until_text("#try-outputs pre", "[1,2,3.5,-4]")
    page.type("#data-0", "9", clear=True)
    page.click("#run")
    page.until_text("#try-outputs pre", "[9,9,9,9]")
    page.type("#data-0", "[1]", clear=True)
    page.click("#run")
    page.until("document.querySelector('#try-status.error')")


def test_text_optional_and_decoupled_models_can_be_tried(page: Browser, url: str) -> None:
    try_model(page, url, "text")
    page.type("#data-0", "just text", clear=True)
    page.click("#run")
    page.until_text("#try-outputs", '["just text"]')
    try_model(page, url, "repeat")
    page.type("#shape-0", "3", clear=True)
    page.type("#data-0", "[5, 6, 7]", clear=True)
    page.click("#run")
    page.until_text("#try-status", "3 outputs")
    assert [part in page.text("#try-outputs") for part in ("1. OUT", "[5]", "3. OUT", "[7]")] == [True] * 4
    try_model(page, url, "ident_fp16")
    assert page.run("return document.querySelector('#run').disabled")


def test_a_server_with_keys_asks_for_one_and_this_tab_alone_keeps_it(page: Browser) -> None:
    with serving(FrontApp(Settings(admin_api_keys=(KEY,)))) as url:
        page.open(f"{url}/")
        page.until("document.querySelector('#key-dialog').open")
        page.type("#key", "sk-wrong")
        page.press(ENTER)
        page.until_text("#key-why", "not one of this server's")
        page.until("document.querySelector('#key-dialog').open")
        page.type("#key", KEY, clear=True)
        page.press(ENTER)
        page.until("document.querySelector('#model').value")
        assert not page.run("return document.querySelector('#key-dialog').open")
        page.type("#prompt", "hi")
        page.press(ENTER)
        page.until(f"{IS_IDLE} && {ANSWER} === 'hello'")
        assert page.run("return [localStorage.length, document.cookie, location.href.includes('sk-')]") == [
            0,
            "",
            False,
        ]
        page.open(f"{url}/#models")
        page.until_text("#repository", "ident")


def test_every_control_has_a_name_and_text_stands_out(page: Browser, url: str) -> None:
    """The rules of WCAG that a script can check: names, and contrast of at least 4.5 in both schemes."""
    open_chat(page, url)
    nameless = """
        return [...document.querySelectorAll('input, select, textarea, button, a, dialog')]
          .filter((e) => !(e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby') || e.textContent.trim()))
          .map((e) => e.outerHTML)"""
    assert page.run(nameless) == []
    for is_dark in (False, True):
        page.dark(is_dark)
        for text, ground in (
            ("--text", "--ground"),
            ("--quiet", "--ground"),
            ("--quiet", "--surface"),
            ("--quiet", "--raised"),
            ("--good", "--surface"),
            ("--bad", "--surface"),
            ("--wait", "--surface"),
            ("--on-accent", "--accent"),
        ):
            script = "const s = getComputedStyle(document.documentElement); return arguments[0].map(n => s.getPropertyValue(n))"
            assert contrast(*page.run(script, [text, ground])) >= 4.5, (text, ground, is_dark)
    page.dark(False)


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """WCAG 2.2, relative luminance, of #rrggbb."""
    parts = [int(colour.strip()[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_the_page_needs_nothing_from_elsewhere(page: Browser, url: str) -> None:
    page.log()
    open_chat(page, url)
    page.until_text("#server-state", "ready")
    loaded = page.run("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert loaded
    assert all(name.startswith(url) for name in loaded)
    assert page.log() == []
    assert sum(len(httpx.get(name).content) for name in set(loaded) if "/console/" in name) < 64 * 1024
