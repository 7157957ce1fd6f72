"""Probes under every name that load balancers and clients look for."""

import httpx
import pytest
from starlette.applications import Starlette

from gateway import health


@pytest.mark.parametrize("is_ready", [True, False])
async def test_readiness_follows_the_models_and_liveness_does_not(is_ready: bool) -> None:
    app = Starlette(routes=health.routes(lambda: is_ready, "1.2.3"))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://gateway") as http:
        for path in ("/health", "/v1/health", "/health/ready"):
            assert (await http.get(path)).status_code == (200 if is_ready else 503)
        for method, path in (("GET", "/health/live"), ("GET", "/ping"), ("POST", "/ping"), ("HEAD", "/health/live")):
            assert (await http.request(method, path)).status_code == 200
        assert (await http.get("/version")).json() == {"version": "1.2.3"}
