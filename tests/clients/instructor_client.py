"""instructor, in the modes for servers of this kind."""

import instructor
import openai
from checks import QUESTION, URL, run
from instructor.core.exceptions import InstructorRetryException
from pydantic import BaseModel, Field

client = openai.OpenAI(base_url=URL + "/v1", api_key="-", max_retries=0, timeout=300)
USER = [{"role": "user", "content": QUESTION}]


class City(BaseModel):
    """Where something is."""

    city: str = Field(max_length=20)


def _ask(mode, **members):
    made = instructor.from_openai(client, mode=mode)
    body = {"model": "chat", "messages": USER, "response_model": City, "max_retries": 0, "temperature": 0}
    return made.chat.completions.create(**(body | members))


def chat():
    assert "Paris" in _ask(instructor.Mode.TOOLS, response_model=None, max_tokens=20).choices[0].message.content


def stream():
    made = instructor.from_openai(client, mode=instructor.Mode.TOOLS)
    parts = list(made.chat.completions.create_partial(model="chat", messages=USER, response_model=City, temperature=0))
    assert parts[-1].city is not None


def tools():
    assert isinstance(_ask(instructor.Mode.TOOLS), City)
    assert isinstance(_ask(instructor.Mode.TOOLS_STRICT), City)


def structured():
    assert isinstance(_ask(instructor.Mode.JSON_SCHEMA), City)


def error():
    try:
        _ask(instructor.Mode.TOOLS, model="nope")
    except (openai.NotFoundError, InstructorRetryException) as refused:
        assert "model_not_found" in str(refused)
    else:
        raise AssertionError("an unknown model was answered")


run(globals())
