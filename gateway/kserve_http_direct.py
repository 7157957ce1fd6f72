"""`/infer` requests that are answered without a task: decoded, handed to their model and answered by plain calls.

Only what comes whole in one read and is answered with one document. Streams of answers, compressed bodies and requests of
web pages go through the application, and so does what is refused at the door, to be told so there.
"""

import asyncio
import time

from backends.api.errors import ServingError
from backends.api.request import InferenceRequest, InferenceResponse
from gateway.admission import Release, nothing_to_release
from gateway.browsers import BrowserRules
from gateway.errors import as_serving_error, http_status
from gateway.http_body import JSON, Scope, error_body, error_headers
from gateway.http_protocol import Exchange
from gateway.key_targets import http_target
from gateway.kserve_http_infer import answer_form, body_type_and_more, header_length, infer_target, is_streamed
from gateway.kserve_json import decode
from gateway.kserve_json_answer import Answer, AnswerForm, encode
from gateway.kserve_service import Service, check_restriction, complete, count_refusal, no_answer, submit
from gateway.kserve_streaming import decoupled_refusal
from gateway.kserve_tensors import num_bytes

_FOR_THE_APPLICATION = frozenset({b"origin", b"accept-encoding", b"content-encoding"})


class DirectInfer:
    """Keeps to what the layers around the application do: the service's gate, or else `rules`."""

    def __init__(self, service: Service, rules: BrowserRules) -> None:
        self._service = service
        self._rules = rules
        self._max_bytes = min(service.offload_bytes, service.max_body_bytes)

    def takes(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return path.endswith("/infer") and scope["method"] == "POST"

    def start(self, exchange: Exchange) -> bool:
        received = time.monotonic()
        target = infer_target(exchange.scope["path"])
        headers: dict[bytes, bytes] = dict(exchange.scope["headers"])
        if target is None or len(exchange.body) > self._max_bytes or not self._is_plain(headers):
            return False
        try:
            release, cache_salt = self._enter(exchange.scope, headers)
        except ServingError:
            return False
        _Call(self._service, exchange, release).start(*target, headers, received, cache_salt)
        return True

    def _is_plain(self, headers: dict[bytes, bytes]) -> bool:
        return headers.keys().isdisjoint(_FOR_THE_APPLICATION) and not is_streamed(headers)

    def _enter(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[Release, str]:
        """What to call at the request's end, and its caller's cache salt. Raises ServingError."""
        gate = self._service.gate
        if gate is None:
            self._rules.check("POST", headers.get(b"host", b"").decode("latin-1"), None, "")
            return nothing_to_release, ""
        target = http_target("POST", scope["path"], guard_metrics=False)
        assert target is not None, "an infer request is open to nobody without a key"
        key = gate.authenticate(headers.get(b"authorization", b"").decode("latin-1"))
        return gate.enter(key, target), gate.caller(key).cache_salt


class _Call:
    """One request, from its bytes to the bytes of its answer. Used on the event loop."""

    __slots__ = ("_exchange", "_form", "_release", "_request", "_service", "_writing")

    def __init__(self, service: Service, exchange: Exchange, release: Release) -> None:
        self._service = service
        self._release = release
        self._exchange = exchange
        self._request: InferenceRequest
        self._form: AnswerForm
        self._writing: asyncio.Task[None] | None = None

    def start(self, name: str, version: str, headers: dict[bytes, bytes], received: float, cache_salt: str) -> None:
        service = self._service
        try:
            check_restriction(service, "inference", headers)
            model = service.repository.find(name, version)
            if model.config.decoupled:
                raise decoupled_refusal()
            try:
                length = header_length(headers)
                decoded = decode(self._exchange.body, length, model.config, version, service.system_memory.window)
            except ServingError as error:
                count_refusal(model, error)
                raise
            request = self._request = decoded.request
            request.times.received = received
            request.cache_salt = cache_salt
            if service.forwarded_headers is not None:
                request.parameters.update(service.forwarded(headers))
        except Exception as error:
            self._tell(as_serving_error(error))
            return
        self._form = answer_form(decoded, model)
        self._exchange.call = self
        submit(service, model, request)
        request.stream.notify_on_loop(self._on_answer)

    def client_left(self) -> None:
        self._request.stream.cancel("the client has gone")

    def _on_answer(self) -> None:
        request = self._request
        try:
            responses = request.stream.poll()
            if not responses:
                raise no_answer(request)
            response = complete(responses[0], request)
            if num_bytes(response.outputs) > self._service.offload_bytes:
                self._writing = asyncio.get_running_loop().create_task(self._answer_aside(response))
                return
            answer = encode(response, self._form)
        except Exception as error:
            self._fail(as_serving_error(error))
            return
        self._answer(answer)

    async def _answer_aside(self, response: InferenceResponse) -> None:
        try:
            answer = await asyncio.to_thread(encode, response, self._form)
        except Exception as error:
            self._fail(as_serving_error(error))
            return
        self._answer(answer)

    def _answer(self, answer: Answer) -> None:
        self._end()
        self._service.on_end(self._request, None)
        content_type, more = body_type_and_more(answer)
        self._release()
        self._exchange.answer(200, answer.body, content_type, more)

    def _fail(self, error: ServingError) -> None:
        self._end()
        self._service.on_end(self._request, error)
        self._tell(error)

    def _end(self) -> None:
        self._request.stream.cancel("it has been answered")  # nothing if it has ended, as it should have

    def _tell(self, error: ServingError) -> None:
        self._release()
        self._exchange.answer(http_status(error.code), error_body(error), JSON, error_headers(error))
