"""llama-index with OpenAILike, the class for servers of this kind."""

import openai
from checks import EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle
from llama_index.core.llms import ChatMessage
from llama_index.core.program import FunctionCallingProgram
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

SERVER = {"api_base": URL + "/v1", "api_key": "-", "max_retries": 0, "timeout": 300}
CHAT = {"model": "chat", "is_chat_model": True, "is_function_calling_model": True, "max_tokens": 60, **SERVER}
model = OpenAILike(temperature=0, **CHAT)
MESSAGES = [ChatMessage(role="user", content=QUESTION)]


class City(BaseModel):
    """Where something is."""

    city: str = Field(max_length=20)


def chat():
    assert "Paris" in model.chat(MESSAGES).message.content
    assert OpenAILike(model="chat", max_tokens=8, **SERVER).complete("The capital of France is").text


def stream():
    assert list(model.stream_chat(MESSAGES))[-1].message.content


def tools():
    program = FunctionCallingProgram.from_defaults(
        output_cls=City, prompt_template_str=QUESTION, llm=model, tool_required=True, allow_parallel_tool_calls=False
    )
    assert isinstance(program(), City)


def structured():
    assert isinstance(model.as_structured_llm(City).chat(MESSAGES).raw, City)


def embeddings():
    found = OpenAILikeEmbedding(model_name=EMBEDDING_MODEL, **SERVER)
    assert len(found.get_query_embedding(QUESTION)) > 100


def error():
    try:
        OpenAILike(**{**CHAT, "model": "nope"}).chat(MESSAGES)
    except openai.NotFoundError as refused:
        assert refused.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was answered")


def cancel():
    long = OpenAILike(**{**CHAT, "max_tokens": ENDLESS_TOKENS}, additional_kwargs={"extra_body": ENDLESS})
    chunks = long.stream_chat(MESSAGES)
    next(chunks)
    chunks.close()
    wait_until_idle()


run(globals())
