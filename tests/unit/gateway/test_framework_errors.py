"""Errors that come from the framework have our shape too."""

import logging

import pytest

from tests.fakes.front import FrontApp

SHAPE = {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/nowhere", 404, "unknown_url"),
        ("POST", "/health/live", 405, "method_not_allowed"),
        ("DELETE", "/", 405, "method_not_allowed"),
    ],
)
async def test_what_the_router_refuses_is_an_error_object(method: str, path: str, status: int, code: str) -> None:
    async with FrontApp().client() as client:
        answer = await client.request(method, path)
    assert answer.status_code == status
    assert answer.json()["error"]["code"] == code
    assert set(answer.json()["error"]) == SHAPE
    assert (status == 405) == ("allow" in answer.headers)


async def test_a_bug_is_told_by_its_id_and_logged_under_it(caplog: pytest.LogCaptureFixture) -> None:
    async with FrontApp().client() as client:
        answer = await client.get("/broken", headers={"x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "internal_error"
    assert set(answer.json()["error"]) == SHAPE
    assert "a bug" not in answer.text
    assert answer.headers["x-should-retry"] == "false"
    logged = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.getMessage() for record in logged] == ["request=mine path=/broken failed"]
