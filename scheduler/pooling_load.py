"""From a config and a version folder to a pooling model that serves."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

from backends.api.model_config import ModelConfig
from backends.pooling.description import Description, find_described
from backends.pooling.options import PoolingOptions
from scheduler.engine_client import EngineClient
from scheduler.engine_observer import EngineObserver
from scheduler.pooling_config import check_pooling_config, pooling_spec
from scheduler.pooling_model import PoolingModel

if TYPE_CHECKING:
    from backends.pooling.tokenizer import PoolingTokenizer
    from backends.text.template import ChatTemplate


async def load_pooling_model(config: ModelConfig, version: str, folder: Path, observer: EngineObserver) -> PoolingModel:
    """Raises ServingError, with nothing left behind."""
    check_pooling_config(config)
    options = PoolingOptions.from_parameters(config.parameters, config.name)
    description, tokenizer, template = await asyncio.to_thread(_text_side, folder.absolute(), options)
    engine = EngineClient(pooling_spec(config, folder.absolute()), observer=observer)
    try:
        await engine.start()
    except BaseException:
        await engine.close()
        raise
    return PoolingModel(config, version, engine, tokenizer=tokenizer, template=template, description=description)


def _text_side(folder: Path, options: PoolingOptions) -> "tuple[Description, PoolingTokenizer, ChatTemplate | None]":
    from backends.pooling.tokenizer import load_pooling_tokenizer
    from backends.text.template import ChatTemplate

    description = find_described(folder, options)
    tokenizer = load_pooling_tokenizer(description.folder)
    source = tokenizer.settings.chat_templates.get("default")
    template = None if source is None else ChatTemplate(source, tokenizer.settings.special_tokens)
    return description, tokenizer, template
