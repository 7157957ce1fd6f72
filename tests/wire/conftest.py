"""The real SDK for every module that has a `server` with the OpenAI face."""

from collections.abc import Iterator
from typing import Any

import openai
import pytest


@pytest.fixture
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key="x", max_retries=0, timeout=300) as made:
        yield made
