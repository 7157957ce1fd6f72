"""pydantic-ai over its OpenAI models, chat and responses."""

import asyncio

from checks import EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle
from pydantic import BaseModel, Field
from pydantic_ai import Agent, Embedder, NativeOutput, ToolOutput
from pydantic_ai.embeddings.openai import OpenAIEmbeddingModel
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

provider = OpenAIProvider(base_url=URL + "/v1", api_key="-")
loop = asyncio.Runner()  # one for all: the provider's connections belong to it
model = OpenAIChatModel("chat", provider=provider)
SHORT = {"max_tokens": 40, "temperature": 0}


class City(BaseModel):
    """Where something is."""

    city: str = Field(max_length=20)


def _ask(agent):
    return loop.run(agent.run(QUESTION)).output


def chat():
    assert "Paris" in _ask(Agent(model, model_settings=SHORT))
    assert _ask(Agent(OpenAIResponsesModel("chat", provider=provider), model_settings=SHORT))


def stream():
    async def read():
        async with Agent(model, model_settings=SHORT).run_stream(QUESTION) as result:
            texts = [text async for text in result.stream_text(delta=True)]
        return texts, result.usage

    texts, usage = loop.run(read())
    assert "".join(texts)
    assert (usage() if callable(usage) else usage).output_tokens > 0


def tools():
    agent = Agent(model, output_type=ToolOutput(City), model_settings={"temperature": 0})
    assert isinstance(_ask(agent), City)


def structured():
    agent = Agent(model, output_type=NativeOutput(City), model_settings={"temperature": 0})
    assert isinstance(_ask(agent), City)


def embeddings():
    embedder = Embedder(OpenAIEmbeddingModel(EMBEDDING_MODEL, provider=provider))
    assert len(loop.run(embedder.embed_query(QUESTION)).embeddings[0]) > 100


def error():
    try:
        _ask(Agent(OpenAIChatModel("nope", provider=provider)))
    except ModelHTTPError as refused:
        assert refused.status_code == 404
        assert refused.body["code"] == "model_not_found"
    else:
        raise AssertionError("an unknown model was answered")


def cancel():
    async def leave():
        settings = {"max_tokens": ENDLESS_TOKENS, "extra_body": ENDLESS}
        async with Agent(model, model_settings=settings).run_stream(QUESTION) as result:
            async for _ in result.stream_text(delta=True):
                break
            await result.cancel()

    loop.run(leave())
    wait_until_idle()


run(globals())
