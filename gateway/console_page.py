"""The page for people at `/`: files of the folder `console`, held in memory."""

import hashlib
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

_FOLDER = Path(__file__).parent / "console"
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_HEADERS = {
    # nothing from elsewhere, nothing inline, and in nobody's frame: text of a model can never become script
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",  # kept, and asked about by its tag
}


def console_routes() -> list[BaseRoute]:
    """`/` and `/console/NAME`. The page asks for a key itself, so its files are open to everyone."""
    files = {path.name: path for path in sorted(_FOLDER.iterdir()) if path.suffix in _TYPES}
    index = _route("/", files.pop("index.html"))
    return [index, *(_route(f"/console/{name}", path) for name, path in files.items())]


def _route(url: str, path: Path) -> Route:
    body = path.read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = {**_HEADERS, "etag": tag}

    async def send_file(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=_TYPES[path.suffix])

    return Route(url, send_file, include_in_schema=False)
