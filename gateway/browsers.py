"""What keeps other sites' web pages from using a server through a visitor's browser.

A page may send some requests to any address without asking: GET, and POST as a form or as plain text. It may read no
answer, but the request has its effect. And a page whose name is made to resolve to 127.0.0.1 counts as the server's own
(DNS rebinding). API keys stop all of this, since no browser sends one by itself; a server without keys checks two headers.
"""

from collections.abc import Collection
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.middleware.cors import CORSMiddleware

from backends.api.errors import Code, ServingError
from gateway.admission import refuse
from gateway.http_body import App, Receive, Scope, Send

# what a form or a script can send without a preflight
_SIMPLE_TYPES = frozenset({"text/plain", "application/x-www-form-urlencoded", "multipart/form-data"})
_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_EXPOSED = (
    "x-request-id",
    "retry-after",
    "retry-after-ms",
    "openai-processing-ms",
    "x-should-retry",
    "www-authenticate",
    "inference-header-content-length",
)
_PREFLIGHT_SECONDS = 600


def with_cors(app: App, origins: Collection[str]) -> App:
    """`app` for pages of `origins` too. Must be the outermost layer: an error without its headers is hidden from the page."""
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=["GET", "POST", "HEAD", "OPTIONS"],
        allow_headers=["*"],  # echoes what was asked for: authorization, content-type, x-stainless-*
        expose_headers=_EXPOSED,
        max_age=_PREFLIGHT_SECONDS,
    )


@dataclass(frozen=True, slots=True)
class BrowserRules:
    """`hosts` are the names the server may be called by, None for any. `origins` are trusted pages, `*` all."""

    hosts: frozenset[str] | None
    origins: frozenset[str] = frozenset()

    def check(self, method: str, host: str, origin: str | None, content_type: str) -> None:
        """Raise ServingError(FORBIDDEN) for a request that another site's page may have made."""
        if self.hosts is not None and host_name(host) not in self.hosts:
            message = f"this server does not go by the name '{host[:100]}': --http-allowed-host adds names"
            raise ServingError(Code.FORBIDDEN, message, reason="host_not_allowed")
        if origin is None or method in ("GET", "HEAD", "OPTIONS"):
            return
        if content_type.partition(";")[0].strip().lower() in _SIMPLE_TYPES:
            message = f"header 'content-type': a web page must send application/json, got '{content_type[:80]}'"
            raise ServingError(Code.INVALID, message, reason="invalid_value")
        if not self._trusts(origin, host):
            message = f"pages of '{origin[:100]}' may not use this server: --cors-allow-origin adds origins"
            raise ServingError(Code.FORBIDDEN, message, reason="origin_not_allowed")

    def _trusts(self, origin: str, host: str) -> bool:
        return urlsplit(origin).netloc == host or origin in self.origins or "*" in self.origins


def rules_without_keys(address: str, allowed_hosts: Collection[str], origins: Collection[str]) -> BrowserRules:
    """Only a server that listens on this machine alone knows its names; others trust the name they are called by."""
    hosts = _LOOPBACK_NAMES | {address.lower()} | {name.lower() for name in allowed_hosts}
    return BrowserRules(frozenset(hosts) if allowed_hosts or _is_loopback(address) else None, frozenset(origins))


def host_name(host: str) -> str:
    """The name in a Host header, without port and brackets, in lower case."""
    name = host.lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name.partition(":")[0].removesuffix(".")


def _is_loopback(address: str) -> bool:
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


class BrowserGuard:
    """`rules` applied to every request. Installed only where there are no keys."""

    def __init__(self, app: App, rules: BrowserRules) -> None:
        self._app = app
        self._rules = rules

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host, origin, content_type = "", None, ""
            for name, value in scope["headers"]:
                if name == b"host":
                    host = value.decode("latin-1")
                elif name == b"origin":
                    origin = value.decode("latin-1")
                elif name == b"content-type":
                    content_type = value.decode("latin-1")
            try:
                self._rules.check(scope["method"], host, origin, content_type)
            except ServingError as error:
                await refuse(scope, send, error)
                return
        await self._app(scope, receive, send)
