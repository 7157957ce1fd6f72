"""The real `openai` client against the OpenAI face on a loopback port."""

import asyncio

import openai
import pytest

from backends.api.errors import Code, ServingError
from tests.unit.openai_api.scripted import ScriptedModel, says, tokens, tokens_of
from tests.wire.openai_server import wire_server

USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def server():
    with wire_server(keep_alive_interval=0.005) as running:
        yield running


def test_a_plain_chat(server, client):
    server.serve(ScriptedModel(says("Hello wörld 🎉")))
    answer = client.chat.completions.create(model="chat", messages=USER)
    assert answer.choices[0].message.content == "Hello wörld 🎉"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_streamed_chat(server, client):
    server.serve(ScriptedModel(says("Hello wörld 🎉")))
    options = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="chat", messages=USER, stream=True, stream_options=options))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "Hello wörld 🎉"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == len("Hello wörld 🎉".encode()) + 1


@pytest.mark.parametrize("n", [1, 3])
def test_the_stream_helper_adds_up_what_the_plain_answer_says(server, client, n):
    server.serve(ScriptedModel(says("Hello wörld 🎉")))
    body = {"model": "chat", "messages": USER, "n": n, "logprobs": True, "top_logprobs": 2}
    plain = client.chat.completions.create(**body)
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as stream:
        list(stream)
        final = stream.get_final_completion()
    assert len(final.choices) == n
    for got, want in zip(final.choices, plain.choices, strict=True):
        assert (got.message.content, got.message.role) == (want.message.content, "assistant")
        assert got.finish_reason == want.finish_reason
        assert got.logprobs.content == want.logprobs.content
    assert final.usage == plain.usage


def test_text_completions(server, client):
    server.serve(ScriptedModel(says("Hello")))
    answer = client.completions.create(model="chat", prompt=["a", "b"], n=2, logprobs=1, echo=True)
    assert [choice.text for choice in answer.choices] == ["aHello", "aHello", "bHello", "bHello"]
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    chunks = list(client.completions.create(model="chat", prompt=[1, 2], stream=True, logprobs=1))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"


async def test_the_async_client(server):
    server.serve(ScriptedModel(says("Hello")))
    async with openai.AsyncOpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=20) as client:

        async def one():
            stream = await client.chat.completions.create(model="chat", messages=USER, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*[one() for _ in range(16)]) == ["Hello"] * 16


def test_heartbeats_do_not_disturb_the_client(server, client):
    model = server.serve(ScriptedModel(says("Hello"), gate=asyncio.Semaphore(0)))
    stream = iter(client.chat.completions.create(model="chat", messages=USER, stream=True))
    texts = [next(stream).choices[0].delta.content]
    for _ in "Hello":
        server.release(model)
        texts.append(next(stream).choices[0].delta.content)
    server.release(model)
    texts += [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(texts) == "Hello"


def test_models_are_listed_and_found_by_escaped_ids(server, client):
    server.serve(ScriptedModel(says("x"), name="org/na me"))
    assert "org/na me" in [model.id for model in client.models.list()]
    assert client.models.retrieve("org/na me").id == "org/na me"
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("nope")
    assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "error", "code"),
    [
        ({"model": "nope", "messages": USER}, openai.NotFoundError, "model_not_found"),
        ({"model": "chat", "messages": USER, "temperature": 99}, openai.BadRequestError, "decimal_above_max_value"),
        ({"model": "chat", "messages": []}, openai.BadRequestError, "empty_array"),
        (
            {"model": "chat", "messages": [{"role": "user", "content": "word " * 20_000}]},
            openai.BadRequestError,
            "context_length_exceeded",
        ),
    ],
)
def test_errors_are_the_sdks_own_exceptions(server, client, body, error, code):
    server.serve(ScriptedModel(says("x")))
    with pytest.raises(error) as caught:
        client.chat.completions.create(**body)
    assert caught.value.code == code
    assert caught.value.body.keys() == {"message", "type", "param", "code"}
    assert caught.value.request_id


def test_an_engine_that_fails_in_mid_stream_raises_in_the_client(server, client):
    failure = ServingError(Code.UNAVAILABLE, "engine process ended (signal 9)", reason="engine_ended")
    server.serve(ScriptedModel(tokens(*tokens_of("abc"), failure)))
    got = []
    with pytest.raises(openai.APIError) as caught:
        got.extend(client.chat.completions.create(model="chat", messages=USER, stream=True))
    assert caught.value.code == "model_not_ready"
    assert "signal 9" in caught.value.message
    assert not any(chunk.choices[0].finish_reason for chunk in got)


def test_a_refused_request_is_retried_after_the_time_we_say(server):
    model = server.serve(ScriptedModel(says("x"), refuse_after=0, retry_after=0.01))
    with (
        openai.OpenAI(base_url=server.url, api_key="x", max_retries=2, timeout=20) as client,
        pytest.raises(openai.InternalServerError) as caught,
    ):
        client.chat.completions.create(model="chat", messages=USER)
    assert caught.value.code == "overloaded"
    assert model.num_refused == 3


def test_a_client_that_closes_its_stream_frees_the_engine(server, client):
    model = server.serve(ScriptedModel(says("x" * 1000), gate=asyncio.Semaphore(0)))
    stream = client.chat.completions.create(model="chat", messages=USER, stream=True)
    next(iter(stream))
    stream.close()
    server.call(lambda: model.until_running(0))
    assert model.num_aborted == 1


def test_a_client_that_gives_up_on_a_plain_answer_frees_the_engine(server, client):
    model = server.serve(ScriptedModel(says("x"), gate=asyncio.Semaphore(0)))
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="chat", messages=USER, timeout=0.2, n=2)
    server.call(lambda: model.until_running(0))
    assert model.num_aborted == 2
