"""The requests that Open WebUI's server makes of an OpenAI connection, with their members and headers."""

import json

import httpx
from checks import EMBEDDING_MODEL, ENDLESS, ENDLESS_TOKENS, QUESTION, URL, run, wait_until_idle

client = httpx.Client(
    base_url=URL + "/v1", headers={"Authorization": "Bearer -", "Content-Type": "application/json"}, timeout=300
)
USER = [{"role": "user", "content": QUESTION}]
# what its settings panel can add, all at once
PARAMETERS = {
    "temperature": 0,
    "top_p": 0.9,
    "min_p": 0.0,
    "max_tokens": 20,
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repeat_penalty": 1.1,
    "reasoning_effort": "low",
    "seed": 0,
    "stop": ["\n\n\n"],
    "logit_bias": {},
    "my_own_parameter": 1,
}


def _stream(**members):
    with client.stream("POST", "/chat/completions", json={"model": "chat", "messages": USER, **members}) as answer:
        assert "text/event-stream" in answer.headers["content-type"]
        for line in answer.iter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                yield json.loads(line[6:])


def chat():
    """The connection's check and its list of models, then a title as it asks for one."""
    assert "chat" in [model["id"] for model in client.get("/models").json()["data"]]
    title = {"model": "chat", "messages": USER, "stream": False, "max_completion_tokens": 1000, "temperature": 0}
    answer = client.post("/chat/completions", json=title).json()
    assert answer["choices"][0]["message"]["content"]


def stream():
    chunks = list(_stream(stream=True, stream_options={"include_usage": True}, **PARAMETERS))
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])
    assert chunks[-1]["usage"]["completion_tokens"] > 0


def tools():
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    weather = {"type": "function", "function": {"name": "weather", "description": "", "parameters": parameters}}
    chunks = list(_stream(stream=True, tools=[weather], tool_choice="required", max_tokens=200))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    pieces = [piece for delta in deltas for piece in delta.get("tool_calls", []) if piece["index"] == 0]
    assert pieces[0]["function"]["name"] == "weather"
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces))["city"] is not None


def structured():
    body = {"model": "chat", "messages": USER, "response_format": {"type": "json_object"}, "max_tokens": 200}
    choice = client.post("/chat/completions", json=body).json()["choices"][0]
    assert choice["finish_reason"] == "length" or isinstance(json.loads(choice["message"]["content"]), dict)


def embeddings():
    body = {"input": [QUESTION], "model": EMBEDDING_MODEL}
    assert len(client.post("/embeddings", json=body).json()["data"][0]["embedding"]) > 100


def error():
    answer = client.post("/chat/completions", json={"model": "nope", "messages": USER})
    assert answer.json()["error"]["message"]


def cancel():
    chunks = _stream(stream=True, max_tokens=ENDLESS_TOKENS, **ENDLESS)
    next(chunks)
    chunks.close()
    wait_until_idle()


run(globals())
