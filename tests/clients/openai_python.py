"""openai-python, of either generation."""

import openai
from checks import CITY, EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=URL + "/v1", api_key="-", max_retries=0, timeout=300)
USER = [{"role": "user", "content": QUESTION}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
FORCED = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}


class City(BaseModel):
    city: str = Field(max_length=20)


def chat():
    answer = client.chat.completions.create(model="chat", messages=USER, max_tokens=20, temperature=0)
    assert "Paris" in answer.choices[0].message.content
    assert client.responses.create(model="chat", input=QUESTION, max_output_tokens=20, temperature=0).output_text


def stream():
    body = {"model": "chat", "messages": USER, "max_tokens": 20, "temperature": 0}
    with client.chat.completions.stream(**body, stream_options={"include_usage": True}) as events:
        final = events.until_done().get_final_completion()
    assert final.choices[0].message.content
    assert final.usage.completion_tokens > 0
    with client.responses.stream(model="chat", input=QUESTION, temperature=0) as events:
        assert events.get_final_response().output_text


def tools():
    (call,) = client.chat.completions.create(model="chat", messages=USER, **FORCED).choices[0].message.tool_calls
    assert City.model_validate_json(call.function.arguments)
    with client.chat.completions.stream(model="chat", messages=USER, **FORCED) as events:
        (call,) = events.get_final_completion().choices[0].message.tool_calls
    assert City.model_validate_json(call.function.arguments)
    flat = {"type": "function", "name": "weather", "parameters": CITY}
    (item,) = client.responses.create(model="chat", input=QUESTION, **{**FORCED, "tools": [flat]}).output
    assert City.model_validate_json(item.arguments)


def structured():
    answer = client.chat.completions.parse(model="chat", messages=USER, response_format=City)
    assert isinstance(answer.choices[0].message.parsed, City)
    assert isinstance(client.responses.parse(model="chat", input=QUESTION, text_format=City).output_parsed, City)


def embeddings():
    (found,) = client.embeddings.create(model=EMBEDDING_MODEL, input=QUESTION).data
    assert len(found.embedding) > 100


def error():
    try:
        client.chat.completions.create(model="nope", messages=USER)
    except openai.NotFoundError as refused:
        assert refused.code == "model_not_found"
    else:
        raise AssertionError("an unknown model was answered")
    try:
        list(client.chat.completions.create(model="breaks", messages=USER, stream=True))
    except openai.APIError as broken:
        assert broken.code, broken
    else:
        raise AssertionError("a broken stream looked whole")


def cancel():
    events = client.chat.completions.create(
        model="chat", messages=USER, max_tokens=ENDLESS_TOKENS, extra_body=ENDLESS, stream=True
    )
    next(iter(events))
    events.close()
    wait_until_idle()


run(globals())
