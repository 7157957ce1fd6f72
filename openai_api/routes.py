"""The OpenAI endpoints as ASGI routes, for `gateway/app.py` to mount."""

import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor

import orjson
from starlette.datastructures import QueryParams
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from backends.api.errors import Code, ServingError
from openai_api.catalog import Catalog, Find, ListModels
from openai_api.embeddings import serve_embeddings
from openai_api.exchange import Exchange, InFlight
from openai_api.http import header, request_id, send_error, send_json
from openai_api.json_body import check_content_type
from openai_api.options import OpenAIOptions
from openai_api.response_wire import not_kept
from openai_api.responses import serve_response
from openai_api.scoring import serve_rerank, serve_score
from openai_api.text_endpoints import TextService, serve_chat, serve_completion
from openai_api.tokenize import serve_detokenize, serve_tokenize, tokenizer_info

Handler = Callable[[Scope, Receive, Send], Coroutine[object, object, None]]


class OpenAI:
    """The OpenAI face of one server: its routes, and the requests under way through them.

    `drain` and the routes run on the server's event loop.
    """

    def __init__(self, find: Find, list_models: ListModels, options: OpenAIOptions | None = None) -> None:
        self._options = options or OpenAIOptions()
        self._workers = ThreadPoolExecutor(max_workers=2, thread_name_prefix="openai-text")
        self._catalog = Catalog(find, list_models, created=int(time.time()))
        self._service = TextService(self._catalog, self._options, self._workers)
        self._in_flight = InFlight()

    def routes(self) -> list[BaseRoute]:
        """Every route under /v1, and vLLM's without it. The last one answers what no other takes: put further /v1 routes
        before these."""
        return [
            *self._unversioned_routes(""),
            *self._unversioned_routes("/v1"),
            Route("/reset_prefix_cache", _Endpoint(self._reset_prefix_cache, "POST")),
            Route("/v1/chat/completions", _Endpoint(self._posted(serve_chat), "POST")),
            Route("/v1/completions", _Endpoint(self._posted(serve_completion), "POST")),
            Route("/v1/embeddings", _Endpoint(self._posted(serve_embeddings), "POST")),
            Route("/v1/responses", _Endpoint(self._posted(serve_response), "POST")),
            Route("/v1/responses/{id}", _Endpoint(_response_not_kept), methods=["GET", "DELETE"]),
            Route("/v1/responses/{id}/input_items", _Endpoint(_response_not_kept), methods=["GET"]),
            Route("/v1/responses/{id}/cancel", _Endpoint(_response_not_kept), methods=["POST"]),
            Route("/v1/models", _Endpoint(self._list_models, "GET", "HEAD")),
            Route("/v1/models/", _Endpoint(self._list_models, "GET", "HEAD")),
            Route("/v1/models/{id:path}", _Endpoint(self._retrieve_model, "GET", "HEAD")),
            Route("/v1", _Endpoint(_unknown_url)),
            Route("/v1/{path:path}", _Endpoint(_unknown_url)),
        ]

    def _unversioned_routes(self, prefix: str) -> list[BaseRoute]:
        return [
            Route(f"{prefix}/rerank", _Endpoint(self._posted(serve_rerank), "POST")),
            Route(f"{prefix}/score", _Endpoint(self._posted(serve_score), "POST")),
            Route(f"{prefix}/tokenize", _Endpoint(self._posted(serve_tokenize), "POST")),
            Route(f"{prefix}/detokenize", _Endpoint(self._posted(serve_detokenize), "POST")),
            Route(f"{prefix}/tokenizer_info", _Endpoint(self._tokenizer_info, "GET", "HEAD")),
        ]

    @property
    def num_in_flight(self) -> int:
        return len(self._in_flight)

    async def drain(self, grace: float) -> None:
        """Refuse new requests at once; give those under way `grace` seconds; end the rest with an error each."""
        await self._in_flight.drain(grace)
        self._workers.shutdown(wait=False, cancel_futures=True)

    def _posted(self, serve: Callable[[TextService, Exchange, bytes], Coroutine[object, object, None]]) -> Handler:
        async def handle(scope: Scope, receive: Receive, send: Send) -> None:
            check_content_type(header(scope, b"content-type"), header(scope, b"content-encoding"))
            with self._in_flight.exchange(Exchange(scope, receive, send, self._options)) as exchange:
                await exchange.run(lambda body: serve(self._service, exchange, body))

        return handle

    async def _list_models(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _send_object(scope, send, self._catalog.cards())

    async def _tokenizer_info(self, scope: Scope, receive: Receive, send: Send) -> None:
        model_id = QueryParams(scope["query_string"]).get("model", "")
        await _send_object(scope, send, tokenizer_info(self._catalog, model_id))

    async def _reset_prefix_cache(self, scope: Scope, receive: Receive, send: Send) -> None:
        for model in self._catalog.text_models():
            model.clear_cache()
        await _send_object(scope, send, {})

    async def _retrieve_model(self, scope: Scope, receive: Receive, send: Send) -> None:
        # the server has decoded the path: `org%2Fmodel` is `org/model` here
        await _send_object(scope, send, self._catalog.card(scope["path_params"]["id"]))


class _Endpoint:
    """A handler as an ASGI app that takes some methods (all when none is named) and answers a ServingError that is
    raised before anything was sent."""

    def __init__(self, handler: Handler, *methods: str) -> None:
        self._handler = handler
        self._methods = methods

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"x-request-id", request_id(scope).encode())]
        if self._methods and scope["method"] not in self._methods:
            allowed = ", ".join(self._methods)
            message = f"{scope['path'][:200]} takes {allowed}, not {scope['method'][:20]}"
            error = ServingError(Code.INVALID, message, reason="method_not_allowed")
            return await send_error(send, error, [*headers, (b"allow", allowed.encode())])
        try:
            await self._handler(scope, receive, send)
        except ServingError as error:
            await send_error(send, error, headers)
        return None


async def _unknown_url(scope: Scope, receive: Receive, send: Send) -> None:
    message = f"there is no endpoint {scope['method'][:20]} {scope['path'][:200]}"
    raise ServingError(Code.NOT_FOUND, message, reason="unknown_url")


async def _response_not_kept(scope: Scope, receive: Receive, send: Send) -> None:
    raise not_kept(None)


async def _send_object(scope: Scope, send: Send, value: dict[str, object]) -> None:
    await send_json(send, 200, orjson.dumps(value), [(b"x-request-id", request_id(scope).encode())])
