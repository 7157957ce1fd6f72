"""Config and version folder -> live model: which kind of scheduler a model gets. Handed to the repository by the gateway."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from backends.api.base import LiveModel
from backends.api.errors import Code, ServingError
from backends.api.model_config import ModelConfig
from backends.python.backend import PythonBackend, config_texts
from backends.python.environment import Environments
from scheduler.alarm import Alarm
from scheduler.bls import ModelCalls, Models
from scheduler.engine_client import EngineClient
from scheduler.engine_observer import EngineObserver
from scheduler.engine_spec import EngineSpec
from scheduler.ensemble import EnsembleModel, load_ensemble
from scheduler.labels import read_labels
from scheduler.language_config import check_language_config
from scheduler.language_model import LanguageModel
from scheduler.load import load_tensor_model, start_tensor_model
from scheduler.pooling_load import load_pooling_model
from scheduler.rate_limit import RateLimiter
from scheduler.response_cache import ResponseCache
from scheduler.tensor_model import TensorModel

if TYPE_CHECKING:
    from backends.text.template import ChatTemplate
    from backends.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)
LLM = "llm"
POOLING = "pooling"
PYTHON = "python"


@dataclass(frozen=True, slots=True)
class PythonParts:
    """What custom models need from above. `models` is called when the first of them is loaded."""

    models: Callable[[], Models]
    config_to_json: Callable[[ModelConfig], Any]
    config_of_json: Callable[[str, str], ModelConfig]
    environments: Environments = field(default_factory=Environments)


ObserverFactory = Callable[[ModelConfig, str], EngineObserver]
"""From a model's config and version to who watches its engine."""


class FindStep(Protocol):
    """The live model that an ensemble of the repository `home` means by a step; also while the server stops."""

    def __call__(self, name: str, version: str, *, home: str, namespace: str) -> LiveModel: ...


def _nothing_to_find(name: str, version: str, *, home: str, namespace: str) -> LiveModel:
    raise ServingError(Code.NOT_FOUND, f"Request for unknown model: '{name}' is not found")


class ModelLoader:
    """A `Loader` of the repository. Owns what all models share: the alarm of queue deadlines, the response cache, rate limits."""

    def __init__(
        self,
        observer: ObserverFactory,
        *,
        cache: ResponseCache | None = None,
        limiter: RateLimiter | None = None,
        cache_folder: str = "",
        find: FindStep = _nothing_to_find,
        python: PythonParts | None = None,
        backend_settings: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        """`backend_settings`: backend -> what --backend-config says for it. `find` gives ensembles the live models of their steps; it is not called before a model is loaded."""
        self._observer = observer
        self._limiter = limiter
        self._cache = cache
        self._cache_folder = cache_folder
        self._find = find
        self._python = python
        self._backend_settings = backend_settings or {}
        self._calls: ModelCalls | None = None
        self._alarm = Alarm()

    async def __call__(self, config: ModelConfig, version: str, folder: Path, /, *, namespace: str = "") -> LiveModel:
        """Raises ServingError, with nothing left behind."""
        start = time.monotonic()
        if config.backend == LLM:
            model: LiveModel = await self._language_model(config, version, folder)
        elif config.backend == POOLING:
            model = await load_pooling_model(config, version, folder, self._observer(config, version))
        else:
            model = await self._labelled_model(config, version, folder, namespace)
        loaded: Any = model
        loaded.namespace = namespace
        loaded.load_seconds = time.monotonic() - start
        return model

    async def _labelled_model(
        self, config: ModelConfig, version: str, folder: Path, namespace: str
    ) -> EnsembleModel | TensorModel:
        labels = await asyncio.to_thread(read_labels, config, folder.parent)
        if config.ensemble is not None:
            model: EnsembleModel | TensorModel = load_ensemble(
                config, version, partial(self._find, home=namespace), self._cache
            )
        elif config.backend == PYTHON:
            model = await self._python_model(config, version, folder)
        else:
            model = await load_tensor_model(
                config,
                version,
                folder,
                alarm=self._alarm,
                cache=self._cache,
                limiter=self._limiter,
                settings=self._backend_settings.get(config.backend),
            )
        model.labels = labels
        return model

    async def _python_model(self, config: ModelConfig, version: str, folder: Path) -> TensorModel:
        parts = self._python
        if parts is None:
            raise ServingError(Code.UNSUPPORTED, f"model '{config.name}': this server runs no custom models")
        if self._calls is None:
            self._calls = ModelCalls(parts.models(), asyncio.get_running_loop())
        to_text, of_text = config_texts(parts.config_to_json, parts.config_of_json)
        backend = await asyncio.to_thread(
            PythonBackend,
            config,
            folder,
            version,
            to_json=to_text,
            of_json=of_text,
            services=self._calls,
            environments=parts.environments,
            settings=self._backend_settings.get(PYTHON),
        )
        return await start_tensor_model(
            backend,
            config,
            version,
            folder.parent / "warmup",
            alarm=self._alarm,
            cache=self._cache,
            limiter=self._limiter,
        )

    async def _language_model(self, config: ModelConfig, version: str, folder: Path) -> LanguageModel:
        check_language_config(config)
        parameters = {"model": ".", **config.parameters}
        cache_folder = Path(self._cache_folder) if self._cache_folder else None
        spec = EngineSpec.of(replace(config, parameters=parameters), folder.absolute(), cache_folder)
        engine = EngineClient(spec, observer=self._observer(config, version))
        reading = asyncio.create_task(asyncio.to_thread(_text_side, parameters["model"], folder))
        try:
            (tokenizer, template), _ = await asyncio.gather(reading, engine.start())
        except BaseException:
            await engine.close()
            raise
        assert engine.limits is not None
        return LanguageModel(
            config,
            version,
            engine,
            tokenizer=tokenizer,
            template=template,
            max_model_len=engine.limits.max_model_len,
        )


def _text_side(location: str, folder: Path) -> "tuple[Tokenizer, ChatTemplate | None]":
    """The tokenizer and the chat template that lie beside the weights."""
    from backends.lm.location import find_model
    from backends.text.template import model_template
    from backends.text.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(find_model(location, folder))
    return tokenizer, model_template(tokenizer)
