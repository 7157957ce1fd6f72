"""The server as it is put together: its doors by its settings, on real ports."""

import asyncio
import shutil
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from gateway.app import Server
from gateway.compound_settings import tls_context
from gateway.settings import Settings, SettingsError
from tests.fakes.console_server import serving as serving_front
from tests.fakes.front import FrontApp

KEYS = {"api_keys": ("sk-1",), "admin_api_keys": ("sk-admin",)}


@asynccontextmanager
async def serving(folder: Path, **changes: object) -> AsyncIterator[Server]:
    settings = Settings(
        model_repository=(str(folder),),
        model_control_mode="explicit",
        http_port=0,
        grpc_port=0,
        metrics_port=0,
        **changes,  # type: ignore[arg-type]
    )
    server = Server(settings)
    await server.start(asyncio.Event())
    try:
        yield server
    finally:
        await server.close(0.0)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def test_keys_guard_both_ports_of_http(tmp_path: Path) -> None:
    async with serving(tmp_path, metrics_require_key=True, **KEYS) as server, httpx.AsyncClient() as client:
        http, metrics = f"http://{server.http.url}", f"http://{server.metrics_http.url}"
        for url in (f"{http}/v1/models", f"{http}/v2", f"{http}/metrics", f"{metrics}/metrics"):
            assert (await client.get(url)).status_code == 401, url
            assert (await client.get(url, headers=bearer("sk-1"))).status_code == 200, url
        assert (await client.get(f"{http}/")).headers["content-type"] == "text/html; charset=utf-8"
        load = f"{http}/v2/repository/models/absent/load"
        assert (await client.post(load, headers=bearer("sk-1"))).status_code == 403
        assert (await client.post(load, headers=bearer("sk-admin"))).status_code == 500
        listed = await client.post(f"{http}/v2/repository/index", headers=bearer("sk-admin"))
        assert listed.json() == []


async def test_metrics_stay_open_unless_guarded(tmp_path: Path) -> None:
    async with serving(tmp_path, **KEYS) as server, httpx.AsyncClient() as client:
        assert (await client.get(f"http://{server.metrics_http.url}/metrics")).status_code == 200


async def test_without_keys_loopback_goes_by_its_own_names_only(tmp_path: Path) -> None:
    async with serving(tmp_path, allow_console=False) as server, httpx.AsyncClient() as client:
        url = f"http://{server.http.url}"
        assert (await client.get(f"{url}/v2")).status_code == 200
        assert (await client.get(f"{url}/v2", headers={"host": "rebound.example"})).status_code == 403
        assert (await client.get(f"{url}/")).status_code == 404


async def test_the_page_is_fetched_again_only_when_it_changed(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, httpx.AsyncClient(base_url=f"http://{server.http.url}") as client:
        first = await client.get("/console/main.js")
        again = await client.get("/console/main.js", headers={"if-none-match": first.headers["etag"]})
        assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
        assert "default-src 'none'" in first.headers["content-security-policy"]
        assert (await client.get("/console/../cli.py")).status_code == 404
        assert (await client.head("/")).status_code == 200


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    files = str(folder / "cert.pem"), str(folder / "key.pem")
    options = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    names = ["-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(
        ["openssl", *options, *names, "-out", files[0], "-keyout", files[1]], check=True, capture_output=True
    )
    return files


async def test_https_serves_with_the_certificate_it_is_given(tmp_path: Path, certificate: tuple[str, str]) -> None:
    trust = ssl.create_default_context(cafile=certificate[0])
    tls = {"http_server_cert": certificate[0], "http_server_key": certificate[1]}
    async with serving(tmp_path, **tls) as server, httpx.AsyncClient(verify=trust) as client:
        assert (await client.get(f"https://{server.http.url}/health/live")).status_code == 200
        with pytest.raises(httpx.TransportError):
            await client.get(f"http://{server.http.url}/health/live")


def test_files_that_are_no_certificate_are_refused_at_the_start(tmp_path: Path, certificate: tuple[str, str]) -> None:
    (tmp_path / "junk.pem").write_text("junk")
    for cert, key in ((certificate[0], str(tmp_path / "absent")), (str(tmp_path / "junk.pem"), certificate[1])):
        with pytest.raises(SettingsError, match="--http-server-cert"):
            tls_context(cert, key)
    with pytest.raises(SettingsError, match="go together"):
        Settings(http_server_cert=certificate[0])
    assert tls_context("", "") is None


def test_the_openai_sdk_meets_refusals_as_its_own_errors(tmp_path: Path) -> None:
    path = tmp_path / "keys.toml"
    rights = "models = ['chat']\nrequests_per_minute = 2"
    path.write_text(f"[[keys]]\nname = 'one'\nkey = 'sk-one'\n{rights}\n")
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    with serving_front(FrontApp(Settings(api_key_file=str(path)))) as url:

        def ask(key: str, model: str) -> Any:
            with openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0) as client:
                return client.chat.completions.create(model=model, messages=messages)

        with pytest.raises(openai.AuthenticationError) as unknown:
            ask("sk-two", "chat")
        assert unknown.value.code == "invalid_api_key"
        with pytest.raises(openai.PermissionDeniedError) as forbidden:
            ask("sk-one", "other")
        assert (forbidden.value.code, forbidden.value.param) == ("model_not_allowed", "model")
        assert ask("sk-one", "chat").choices[0].message.content == "hello"
        with pytest.raises(openai.RateLimitError) as limited:
            ask("sk-one", "chat")
        assert limited.value.code == "rate_limit_exceeded"
        assert int(limited.value.response.headers["retry-after"]) >= 1


async def test_tritonclient_brings_its_key_as_a_header(tmp_path: Path) -> None:
    async with serving(tmp_path, **KEYS) as server:

        def ask(key: str) -> bool:
            client = triton.InferenceServerClient(server.http.url)
            try:
                client.get_model_repository_index(headers=bearer(key))
            except InferenceServerException as error:
                assert error.status() == "401", error
                return False
            finally:
                client.close()
            return True

        assert await asyncio.to_thread(ask, "sk-1")
        assert not await asyncio.to_thread(ask, "sk-2")
