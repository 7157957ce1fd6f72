"""litellm, as an `openai/` and as a `hosted_vllm/` provider."""

import litellm
from checks import CITY, EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle
from pydantic import BaseModel, Field

SERVER = {"api_base": URL + "/v1", "api_key": "-", "num_retries": 0, "timeout": 300}
USER = [{"role": "user", "content": QUESTION}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
PROVIDERS = ("openai/chat", "hosted_vllm/chat")


class City(BaseModel):
    city: str = Field(max_length=20)


def chat():
    for name in PROVIDERS:
        answer = litellm.completion(model=name, messages=USER, max_tokens=20, temperature=0, **SERVER)
        assert "Paris" in answer.choices[0].message.content


def stream():
    for name in PROVIDERS:
        chunks = list(
            litellm.completion(
                model=name, messages=USER, max_tokens=20, stream=True, stream_options={"include_usage": True}, **SERVER
            )
        )
        whole = litellm.stream_chunk_builder(chunks)
        assert whole.choices[0].message.content
        assert whole.usage.completion_tokens > 0


def tools():
    body = {"messages": USER, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    for name in PROVIDERS:
        (call,) = litellm.completion(model=name, **body, **SERVER).choices[0].message.tool_calls
        assert City.model_validate_json(call.function.arguments)


def structured():
    answer = litellm.completion(model="openai/chat", messages=USER, response_format=City, **SERVER)
    assert City.model_validate_json(answer.choices[0].message.content)


def embeddings():
    found = litellm.embedding(model="openai/" + EMBEDDING_MODEL, input=[QUESTION], **SERVER)
    assert len(found.data[0]["embedding"]) > 100


def error():
    long = [{"role": "user", "content": "word " * 20_000}]
    for kind, messages, name in (
        (litellm.ContextWindowExceededError, long, "openai/chat"),
        (litellm.NotFoundError, USER, "openai/nope"),
    ):
        try:
            litellm.completion(model=name, messages=messages, **SERVER)
        except kind:
            continue
        raise AssertionError(f"no {kind.__name__}")


def cancel():
    chunks = litellm.completion(
        model="openai/chat", messages=USER, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS, stream=True, **SERVER
    )
    next(iter(chunks))
    chunks.completion_stream.close()
    wait_until_idle()


run(globals())
