"""The whole HTTP front over scripted models, behind the doors that settings ask for."""

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway import health, kserve_http
from gateway.admission import Gate
from gateway.console_page import console_routes
from gateway.framework_errors import HANDLERS
from gateway.front_door import guarded, make_gate
from gateway.kserve_http_infer import HotPath
from gateway.kserve_service import Service
from gateway.settings import Settings
from openai_api.options import OpenAIOptions
from openai_api.routes import OpenAI
from tests.fakes.kserve import service
from tests.unit.openai_api.face import Repository
from tests.unit.openai_api.scripted import ScriptedModel, tokens_of

USER = [{"role": "user", "content": "hi"}]


def hello(name: str, text: str = "hello") -> ScriptedModel:
    return ScriptedModel(lambda _: tokens_of(text), name)


@dataclass
class FrontApp:
    """`app` is what a server listens with. `chat` and `other` are its two text models."""

    settings: Settings = field(default_factory=Settings)
    chat: ScriptedModel = field(default_factory=lambda: hello("chat"))
    other: ScriptedModel = field(default_factory=lambda: hello("other"))
    max_body_bytes: int = 1 << 20

    def __post_init__(self) -> None:
        self.gate: Gate | None = make_gate(self.settings)
        self.kserve: Service = service(gate=self.gate)
        texts = Repository(self.chat, self.other)
        find, list_models = texts.find, texts.list
        if self.gate is not None:
            find, list_models = partial(self.gate.find_permitted, find), partial(self.gate.only_permitted, list_models)
        self.openai = OpenAI(
            find,
            list_models,
            OpenAIOptions(max_body_bytes=self.max_body_bytes, log_request_chars=self.settings.log_request_chars),
        )
        app = FastAPI(exception_handlers=HANDLERS)
        app.router.routes += [
            *health.routes(lambda: True, "0"),
            *console_routes(),
            Route("/metrics", _nothing),
            Route("/broken", _broken),
            *kserve_http.routes(self.kserve),
            *self.openai.routes(),
        ]
        self.app: Any = guarded(HotPath(app, self.kserve), self.gate, self.settings)

    def client(self, key: str = "", **headers: str) -> httpx.AsyncClient:
        """A client in this process; a bug's exception becomes the answer that a server would give."""
        if key:
            headers["authorization"] = f"Bearer {key}"
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        return httpx.AsyncClient(transport=transport, base_url="http://localhost:8000", headers=headers)


async def _nothing(request: Request) -> Response:
    return Response("")


async def _broken(request: Request) -> Response:
    raise RuntimeError("a bug")
