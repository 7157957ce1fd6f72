"""The OpenAI face over scripted models, called in process."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.applications import Starlette

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from openai_api.options import OpenAIOptions
from openai_api.routes import OpenAI
from tests.unit.openai_api.scripted import ScriptedModel

USER = [{"role": "user", "content": "hi"}]
CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


class Repository:
    """The models by name and version, as a model repository finds them."""

    def __init__(self, *models: LiveModel) -> None:
        self.models: dict[tuple[str, str], LiveModel] = {}
        for model in models:
            self.add(model)

    def add(self, model: LiveModel) -> None:
        self.models[model.config.name, model.version] = model

    def find(self, name: str, version: str) -> LiveModel:
        versions = {number: model for (known, number), model in self.models.items() if known == name}
        wanted = version or max(versions, key=int, default="")
        if wanted not in versions:
            raise ServingError(Code.NOT_FOUND, f"unknown model '{name}' version '{version}'")
        return versions[wanted]

    def list(self) -> "list[LiveModel]":
        return [*self.models.values()]


class Client:
    """Posts bodies and reads answers; streamed answers come as parsed chunks, their framing checked."""

    def __init__(self, http: httpx.AsyncClient, repository: Repository) -> None:
        self.http = http
        self.repository = repository

    async def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return await self.http.post(path, json={"model": "chat", **body})

    async def chat(self, **members: Any) -> dict[str, Any]:
        return self._good(await self.post(CHAT, {"messages": USER, **members}))

    async def complete(self, prompt: Any = "hi", **members: Any) -> dict[str, Any]:
        return self._good(await self.post(COMPLETIONS, {"prompt": prompt, **members}))

    async def chat_chunks(self, **members: Any) -> list[dict[str, Any]]:
        return parse_events((await self.post(CHAT, {"messages": USER, "stream": True, **members})).content)

    async def complete_chunks(self, prompt: Any = "hi", **members: Any) -> list[dict[str, Any]]:
        return parse_events((await self.post(COMPLETIONS, {"prompt": prompt, "stream": True, **members})).content)

    async def error(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        response = await self.post(path, body)
        return response.status_code, response.json()["error"]

    @staticmethod
    def _good(response: httpx.Response) -> dict[str, Any]:
        assert response.status_code == 200, response.text
        return dict(strict_json(response.content))


def strict_json(data: bytes) -> Any:
    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(data, parse_constant=refuse)


def parse_events(body: bytes) -> list[dict[str, Any]]:
    """The chunks of a whole stream; it must be LF-framed data lines of ASCII with [DONE] at the very end."""
    assert body.isascii()
    assert b"\r" not in body
    *events, end = body.split(b"\n\n")
    assert end == b""
    assert all(event.startswith(b"data: ") and b"\n" not in event for event in events)
    assert events.pop() == b"data: [DONE]"
    return [strict_json(event[6:]) for event in events]


def text_of(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """What a client adds up for one choice, of chat and of text completions."""
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content", "") if "delta" in choice else choice["text"] for choice in choices)


def finish_of(chunks: list[dict[str, Any]], index: int = 0) -> list[str]:
    choices = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
    return [choice["finish_reason"] for choice in choices if choice["finish_reason"] is not None]


@asynccontextmanager
async def client_of(*models: ScriptedModel, options: OpenAIOptions | None = None) -> AsyncIterator[Client]:
    repository = Repository(*models)
    face = OpenAI(repository.find, repository.list, options)
    transport = httpx.ASGITransport(Starlette(routes=face.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as http:
        yield Client(http, repository)
    await face.drain(0)
