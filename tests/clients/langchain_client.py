"""langchain-openai."""

from checks import EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle
from langchain_core.exceptions import ContextOverflowError
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel, Field

SERVER = {"base_url": URL + "/v1", "api_key": "-", "max_retries": 0, "timeout": 300}
model = ChatOpenAI(model="chat", max_tokens=40, temperature=0, **SERVER)


class City(BaseModel):
    """Where something is."""

    city: str = Field(max_length=20)


def chat():
    assert "Paris" in model.invoke(QUESTION).content
    assert OpenAI(model="chat", max_tokens=8, **SERVER).invoke("The capital of France is")
    assert ChatOpenAI(model="chat", max_tokens=40, use_responses_api=True, **SERVER).invoke(QUESTION).text


def stream():
    whole = None
    for chunk in ChatOpenAI(model="chat", max_tokens=20, temperature=0, stream_usage=True, **SERVER).stream(QUESTION):
        whole = chunk if whole is None else whole + chunk
    assert whole.content
    assert whole.usage_metadata["output_tokens"] > 0


def tools():
    for choice in ("any", "City"):
        (call,) = model.bind_tools([City], tool_choice=choice, parallel_tool_calls=False).invoke(QUESTION).tool_calls
        assert City.model_validate(call["args"])


def structured():
    roomy = model.model_copy(update={"max_tokens": 1000})
    for method in ("json_schema", "function_calling"):
        assert isinstance(roomy.with_structured_output(City, method=method).invoke(QUESTION), City)


def embeddings():
    found = OpenAIEmbeddings(model=EMBEDDING_MODEL, check_embedding_ctx_length=False, **SERVER)
    assert len(found.embed_query(QUESTION)) > 100


def error():
    try:
        model.invoke("word " * 20_000)
    except ContextOverflowError as overflow:
        assert "maximum context length" in str(overflow)
    else:
        raise AssertionError("an endless prompt was answered")


def cancel():
    long = ChatOpenAI(model="chat", max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS, **SERVER)
    chunks = long.stream(QUESTION)
    next(chunks)
    chunks.close()
    wait_until_idle()


run(globals())
