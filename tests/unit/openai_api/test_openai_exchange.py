"""A request's life on a connection: clients that leave or do not read, and a server that stops."""

import asyncio
import json

import pytest

from backends.api.errors import Code, ServingError
from openai_api.options import OpenAIOptions
from openai_api.routes import OpenAI
from tests.unit.openai_api.face import USER, Repository
from tests.unit.openai_api.scripted import ScriptedModel, says


class Connection:
    """One HTTP/1.1 request as an ASGI server sees it: the body is there, the client leaves when told to."""

    def __init__(self, body, path="/v1/chat/completions"):
        self.scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"content-type", b"application/json")],
        }
        self.incoming = asyncio.Queue()
        self.incoming.put_nowait({"type": "http.request", "body": json.dumps(body).encode()})
        self.sent = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.changed = asyncio.Event()

    async def receive(self):
        return await self.incoming.get()

    async def send(self, message):
        await self.reads.wait()
        self.sent.append(message)
        self.changed.set()

    def leave(self):
        self.incoming.put_nowait({"type": "http.disconnect"})

    async def sees(self, data):
        while data not in self.body:
            self.changed.clear()
            await self.changed.wait()

    @property
    def status(self):
        return self.sent[0]["status"]

    @property
    def body(self):
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_complete(self):
        return bool(self.sent) and not self.sent[-1].get("more_body", False)


class Server:
    def __init__(self, model, **options):
        repository = Repository(model)
        self.model = model
        self.face = OpenAI(repository.find, repository.list, OpenAIOptions(**options))
        (self.endpoint,) = (route.app for route in self.face.routes() if route.path == "/v1/chat/completions")
        self.tasks = []

    def open(self, **members):
        connection = Connection({"model": "chat", "messages": USER, **members})
        task = asyncio.create_task(self.endpoint(connection.scope, connection.receive, connection.send))
        self.tasks.append(task)
        return connection, task


def gated(text="x" * 100):
    return ScriptedModel(says(text), gate=asyncio.Semaphore(0))


@pytest.mark.parametrize("members", [{"stream": True}, {"stream": False}, {"stream": True, "n": 3}, {"n": 3}])
async def test_a_client_that_leaves_frees_the_engine(members):
    model = gated()
    connection, task = Server(model).open(**members)
    await model.until_running(members.get("n", 1))
    connection.leave()
    await task
    await model.until_running(0)
    assert model.num_aborted == members.get("n", 1)
    assert b"error" not in connection.body


async def test_a_client_that_leaves_in_mid_stream_frees_the_engine():
    model = gated()
    connection, task = Server(model).open(stream=True)
    model.gate.release()
    await connection.sees(b'"content":"x"')
    connection.leave()
    await task
    await model.until_running(0)
    assert model.num_aborted == 1
    assert not connection.is_complete


async def test_a_client_that_leaves_while_its_body_arrives_is_not_answered():
    model = gated()
    server = Server(model)
    connection = Connection({})
    connection.incoming = asyncio.Queue()
    connection.incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    connection.leave()
    await server.endpoint(connection.scope, connection.receive, connection.send)
    assert connection.sent == []
    assert server.face.num_in_flight == 0


async def test_a_body_that_does_not_arrive_in_time_is_refused():
    server = Server(gated(), body_timeout=0.001)
    connection = Connection({})
    connection.incoming = asyncio.Queue()
    await server.endpoint(connection.scope, connection.receive, connection.send)
    assert connection.status == 408


async def test_a_client_that_does_not_read_is_given_up():
    model = gated()
    connection, task = Server(model, send_timeout=0.01).open(stream=True)
    model.gate.release()
    await connection.sees(b'"content":"x"')
    connection.reads.clear()
    model.gate.release()
    await task
    await model.until_running(0)
    assert model.num_aborted == 1
    assert not connection.is_complete  # the server breaks the connection: no end that looks like success


async def test_silence_is_bridged():
    model = gated()
    connection, task = Server(model, keep_alive_interval=0.001).open(stream=True)
    await connection.sees(b": keep-alive\n\n: keep-alive\n\n")
    connection.leave()
    await task


async def test_a_stop_waits_for_what_is_under_way_and_refuses_the_rest():
    model = gated("xyz")
    server = Server(model)
    streamed, first = server.open(stream=True)
    plain, second = server.open()
    await model.until_running(2)
    drain = asyncio.create_task(server.face.drain(grace=60))
    await asyncio.sleep(0)
    late, third = server.open()
    await third
    assert late.status == 503
    assert json.loads(late.body)["error"]["code"] == "shutting_down"
    for _ in range(20):
        model.gate.release()
    await asyncio.gather(first, second, drain)
    assert streamed.body.endswith(b"data: [DONE]\n\n")
    assert json.loads(plain.body)["choices"][0]["message"]["content"] == "xyz"


async def test_what_outlasts_the_grace_time_is_told_why():
    model = gated()
    server = Server(model)
    streamed, first = server.open(stream=True)
    plain, second = server.open()
    await model.until_running(2)
    await server.face.drain(grace=0)
    await asyncio.gather(first, second)
    await model.until_running(0)
    last = streamed.body.rstrip().rsplit(b"\n\n", 1)[1]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
    assert b"[DONE]" not in streamed.body
    assert streamed.is_complete
    assert plain.status == 503
    assert json.loads(plain.body)["error"]["code"] == "shutting_down"
    assert model.num_aborted == 2


async def test_a_stop_does_not_wait_for_a_body_that_is_still_on_its_way():
    server = Server(gated(), body_timeout=3600)
    connection = Connection({})
    connection.incoming = asyncio.Queue()
    connection.incoming.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
    task = asyncio.create_task(server.endpoint(connection.scope, connection.receive, connection.send))
    while not server.face.num_in_flight:
        await asyncio.sleep(0)
    await asyncio.wait_for(server.face.drain(grace=0), 20)
    await task
    assert connection.status == 503
    assert json.loads(connection.body)["error"]["code"] == "shutting_down"


async def test_an_idle_server_stops_at_once():
    await asyncio.wait_for(Server(gated()).face.drain(grace=60), 5)


async def test_one_choice_that_fails_ends_the_others():
    def script(request):
        return [ServingError(Code.INTERNAL, "broken row")] if request.id.endswith("-1") else [0] * 10_000

    model = ScriptedModel(script, max_model_len=20_000)
    connection, task = Server(model).open(stream=True, n=3)
    await task
    await model.until_running(0)
    assert b'"message":"broken row"' in connection.body
    assert model.num_aborted == 2


async def test_a_finished_request_is_logged_without_its_text(caplog):
    caplog.set_level("INFO", logger="openai_api")
    _, task = Server(ScriptedModel(says("secret answer"))).open()
    await task
    (record,) = caplog.records
    assert record.fields["path"] == "/v1/chat/completions"
    assert (record.fields["model"], record.fields["completion_tokens"], record.fields["end"]) == ("chat", 14, "ok")
    assert record.fields["took_s"] >= record.fields["first_token_s"] >= record.fields["queue_s"] >= 0.0
    assert "secret" not in caplog.text + str(record.fields)
