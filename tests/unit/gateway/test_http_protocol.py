"""Requests that are answered around the application, by the bytes that go in and out."""

import asyncio
import json
from typing import Any

import pytest
from uvicorn import Config
from uvicorn.server import ServerState

from gateway import http_protocol
from gateway.http_body import Receive, Scope, Send
from gateway.http_protocol import Exchange, HttpProtocol
from gateway.joined_writes import TurnEnd

HEAD = b"POST /direct HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n"


class Wire(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 1), "sockname": ("127.0.0.1", 2)})
        self.pieces: list[bytes] = []
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.pieces.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


class Direct:
    """Answers `direct BODY` to what is not asked to wait; the body `pass` is left to the application."""

    def __init__(self) -> None:
        self.waiting: list[Exchange] = []
        self.num_left = 0

    def takes(self, scope: Scope) -> bool:
        return bool(scope["path"] == "/direct")

    def start(self, exchange: Exchange) -> bool:
        if exchange.body == b"pass":
            return False
        exchange.call = self
        if exchange.body == b"wait":
            self.waiting.append(exchange)
        else:
            exchange.answer(200, b"direct " + exchange.body, b"text/plain", [(b"x-more", b"1")])
        return True

    def client_left(self) -> None:
        self.num_left += 1


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    body, more = b"", True
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    if scope["path"] == "/stream":
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for part in (b"one ", b"two ", b""):
            await send({"type": "http.response.body", "body": part, "more_body": bool(part)})
        return
    headers = [(b"content-length", b"%d" % (len(body) + 4))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"app " + body})


class Connection:
    def __init__(self) -> None:
        self.direct = Direct()
        self.wire = Wire()
        config = Config(application, lifespan="off", log_config=None, ws="none")
        self.protocol = HttpProtocol(config, ServerState(), {}, turn_end=TurnEnd(), direct=self.direct)
        self.protocol.connection_made(self.wire)

    async def feed(self, *reads: bytes) -> bytes:
        """What has been written once the loop has nothing more to do."""
        for data in reads:
            self.protocol.data_received(data)
        for _ in range(10):
            await asyncio.sleep(0)
        return b"".join(self.wire.pieces)

    def leave(self) -> None:
        self.protocol.connection_lost(None)


@pytest.fixture
async def connection():
    opened = Connection()
    yield opened
    opened.leave()


async def test_a_request_that_comes_whole_is_answered_in_one_piece(connection: Connection) -> None:
    expected = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 11\r\nx-more: 1\r\n\r\ndirect body"
    await connection.feed(HEAD + b"\r\nbody")
    assert connection.wire.pieces == [expected]
    await connection.feed(HEAD + b"\r\nbody")
    assert connection.wire.pieces == [expected, expected]


GET = b"GET / HTTP/1.1\r\nhost: x\r\n"
HUGE = b"x" * http_protocol.MAX_HEAD_BYTES
END = b"\r\n\r\n"


def status_and_error(answer: bytes) -> tuple[bytes, str]:
    head, _, body = answer.partition(END)
    assert b"\r\ncontent-type: application/json" in head
    return head.split()[1], json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "reads",
    [
        [GET + b"a: " + HUGE + END],
        [b"GET /" + HUGE + b" HTTP/1.1" + END],
        [GET + b"a: ", HUGE[:40_000], HUGE[:40_000]],
        [GET + b"a: b\r\n" * http_protocol.MAX_HEADERS + END],
        [HEAD + b"\r\nbody" + GET, b"a: " + HUGE, HUGE],
    ],
)
async def test_a_head_too_large_is_refused_before_more_of_it_is_kept(
    connection: Connection, reads: list[bytes]
) -> None:
    await connection.feed(*reads)
    status, error = status_and_error(connection.wire.pieces[-1])
    assert status == b"431"
    assert error == "the head of a request may have 256 headers and 65536 bytes"
    assert connection.wire.is_closed


async def test_what_follows_a_head_is_no_part_of_it(connection: Connection) -> None:
    large = b"POST / HTTP/1.1\r\ncontent-length: 200000\r\n\r\n" + b"b" * 200_000
    written = await connection.feed(large + large[:20], large[20:], large, GET + b"a: " + HUGE[:60_000] + END)
    assert written.count(b"app " + b"b" * 200_000) == 3
    assert not connection.wire.is_closed


async def test_what_is_no_http_is_told_in_json(connection: Connection) -> None:
    status, error = status_and_error(await connection.feed(b"\x16\x03\x01\x02" + END))
    assert status == b"400"
    assert "Invalid HTTP request" in error
    assert connection.wire.is_closed


@pytest.mark.parametrize("cut", range(1, len(HEAD) + 5))
async def test_a_request_in_two_reads_is_answered_wherever_it_is_cut(connection: Connection, cut: int) -> None:
    request = HEAD + b"\r\nbody"
    written = await connection.feed(request[:cut], request[cut:])
    head_came_first = cut >= len(HEAD) + 2
    assert written.endswith(b"\r\n\r\napp body" if head_came_first else b"\r\n\r\ndirect body")


async def test_what_is_declined_goes_to_the_application_whole(connection: Connection) -> None:
    assert (await connection.feed(HEAD + b"\r\npass")).endswith(b"\r\n\r\napp pass")


async def test_other_paths_never_come_here(connection: Connection) -> None:
    request = (HEAD + b"\r\nbody").replace(b"/direct", b"/other")
    assert (await connection.feed(request)).endswith(b"\r\n\r\napp body")


async def test_who_waits_for_leave_to_send_a_body_gets_it(connection: Connection) -> None:
    written = await connection.feed(HEAD + b"expect: 100-continue\r\n\r\n")
    assert written == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert (await connection.feed(b"body")).endswith(b"app body")


async def test_pipelined_requests_are_answered_in_order(connection: Connection) -> None:
    request = HEAD + b"\r\n"
    written = await connection.feed(request + b"wait" + request + b"next" + request + b"last")
    assert written == b""
    connection.direct.waiting[0].answer(200, b"first", b"text/plain")
    written = await connection.feed()
    assert [part for part in (b"first", b"next", b"last") if part in written] == [b"first", b"next", b"last"]
    assert written.index(b"first") < written.index(b"next") < written.index(b"last")


@pytest.mark.parametrize("request_head", [HEAD + b"connection: close\r\n", HEAD.replace(b"1.1", b"1.0")])
async def test_a_connection_that_is_to_close_closes_after_the_answer(
    connection: Connection, request_head: bytes
) -> None:
    written = await connection.feed(request_head + b"\r\nbody")
    assert b"\r\nconnection: close\r\n" in written
    assert written.endswith(b"direct body")
    assert connection.wire.is_closed


async def test_a_client_that_leaves_is_noticed_once_and_not_written_to(connection: Connection) -> None:
    await connection.feed(HEAD + b"\r\nwait")
    connection.leave()
    assert connection.direct.num_left == 1
    connection.direct.waiting[0].answer(200, b"late", b"text/plain")
    assert await connection.feed() == b""


async def test_a_client_that_leaves_after_its_answer_is_nobodys_business(connection: Connection) -> None:
    await connection.feed(HEAD + b"\r\nbody")
    connection.leave()
    assert connection.direct.num_left == 0


UPGRADES = [
    b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\n",
]


@pytest.mark.parametrize("asked", UPGRADES)
@pytest.mark.parametrize("path", [b"/direct", b"/other"])
async def test_an_upgrade_is_ignored_and_the_body_read(connection: Connection, path: bytes, asked: bytes) -> None:
    request = HEAD.replace(b"/direct", path) + asked + b"\r\nbody"
    for count in (1, 2):
        written = await connection.feed(request)
        assert written.count(b"HTTP/1.1 200 OK") == count
        assert written.endswith(b" body")


@pytest.mark.parametrize("cut", range(1, 120, 3))
async def test_an_upgrade_is_ignored_wherever_the_request_is_cut(connection: Connection, cut: int) -> None:
    request = HEAD + UPGRADES[0] + b"\r\nbody"
    written = await connection.feed(request[:cut], request[cut:], HEAD + b"\r\nnext")
    assert written.index(b" body") < written.index(b" next")
    assert written.count(b"HTTP/1.1 200 OK") == 2


async def test_a_connect_is_answered_and_changes_nothing(connection: Connection) -> None:
    written = await connection.feed(b"CONNECT x:80 HTTP/1.1\r\nhost: x:80\r\n\r\n")
    assert written.count(b"HTTP/1.1 ") == 1


async def test_an_answer_of_unknown_length_to_http_1_0_ends_with_the_connection(connection: Connection) -> None:
    written = await connection.feed(b"GET /stream HTTP/1.0\r\n\r\n")
    head, _, body = written.partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head
    assert body == b"one two "
    assert connection.wire.is_closed


@pytest.mark.parametrize("sent", [b"", b"POST /other HT", b"POST /other HTTP/1.1\r\nhost: x"])
async def test_a_head_that_does_not_come_ends_the_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.0)
    opened = Connection()
    await opened.feed(*[sent] * bool(sent))
    assert opened.wire.is_closed
    opened.leave()


async def test_a_head_that_has_come_leaves_the_body_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "_HEAD_SECONDS", 0.0)
    opened = Connection()
    opened.protocol.data_received(HEAD + b"\r\nbo")
    await opened.feed()
    assert not opened.wire.is_closed
    assert (await opened.feed(b"dy")).endswith(b"app body")
    opened.leave()
