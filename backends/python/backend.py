"""The backend of custom Python models: opens `model.py`, completes its configuration, makes instances."""

import json
import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from backends.api.base import Placement
from backends.api.errors import Code, ServingError
from backends.api.model_config import InstanceGroup, ModelConfig
from backends.python.calls import Calls, NoServices, Services
from backends.python.custom_metrics import CustomMetrics
from backends.python.environment import Environments
from backends.python.frames import Complete, Completed, Failed, Initialize, Initialized, Log, Open, Opened
from backends.python.instance import PythonInstance
from backends.python.options import PythonOptions
from backends.python.process import ModelProcess, ProcessEndedError
from backends.python.supervisor import Supervisor

_LOOK = 0.5  # seconds between two looks at whether a load was given up

log = logging.getLogger("tidegate.model")

ConfigToText = Callable[[ModelConfig], str]
ConfigOfText = Callable[[str], ModelConfig]


class PythonBackend:
    """A `RequestBackend`. The process that completes the configuration becomes the first instance's."""

    def __init__(
        self,
        config: ModelConfig,
        folder: Path,
        version: str,
        *,
        to_json: ConfigToText,
        of_json: ConfigOfText,
        services: Services | None = None,
        environments: Environments | None = None,
        num_gpus: int = 0,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` is the version's, `settings` are the server's for all custom models. Raises ServingError: NOT_FOUND without a model.py, INVALID for options."""
        self.metrics = CustomMetrics()
        self.supervisor = Supervisor()
        self.num_gpus = num_gpus
        self._config = config
        self._folder = folder.absolute()
        self._version = version
        self._options = PythonOptions.of(config, settings or {})
        self._to_json = to_json
        self._of_json = of_json
        self._services = services or NoServices()
        self._filename = config.default_model_filename or "model.py"
        self._lock = threading.Lock()
        self._first: ModelProcess | None = None  # opened and not yet an instance's
        if not (self._folder / self._filename).is_file():
            raise ServingError(
                Code.NOT_FOUND,
                f"model '{config.name}': unable to find '{self._filename}' in version folder '{folder.name}'",
            )
        self._python = (environments or Environments()).python_for(
            config.name, self._folder, self._options.execution_env_path
        )

    @property
    def instances(self) -> list[PythonInstance]:
        """Those that live now, for any thread to look at."""
        return self.supervisor.instances

    def complete(self, config: ModelConfig) -> ModelConfig:
        """`config` with what the model's `auto_complete_config` adds."""
        process, completes = self._open()
        try:
            if completes:
                process.send(Complete(self._to_json(config)))
                config = self._of_json(self._await(process, Completed, None).config)
        except BaseException:
            process.end(0.0)
            raise
        self._first = process
        if config.sequence_batching is not None and config.sequence_batching.states:
            raise self._fault(
                Code.UNSUPPORTED,
                "a custom model keeps the state of its sequences itself, expected no sequence_batching.state",
            )
        self._config = config
        return config

    def set_groups(self, groups: tuple[InstanceGroup, ...]) -> None:
        """What the configuration that new instances are given says of instance groups."""
        self._config = replace(self._config, instance_groups=groups)

    def request_instance(self, placement: Placement) -> PythonInstance:
        calls = Calls(self._services, self.metrics)
        return PythonInstance(
            placement, self._config, self._version, self._options, self._start, calls, self.supervisor
        )

    def stopping(self) -> None:
        self.supervisor.stopping.set()

    def close(self) -> None:
        self.supervisor.stopping.set()
        first, self._first = self._first, None
        if first is not None:
            first.end(0.0)

    def _start(self, instance: PythonInstance) -> tuple[ModelProcess, Initialized]:
        """A process ready to execute, and what its model can. Raises ServingError."""
        with self._lock:
            process, self._first = self._first, None
        if process is None:
            process, _ = self._open()
        process.watch(instance.mailbox.fd)
        instance.adopt(process)
        placement, sequence = instance.placement, self._config.sequence_batching
        args = {
            "model_config": self._to_json(self._config),
            "model_instance_kind": placement.kind,
            "model_instance_name": placement.name,
            "model_instance_device_id": str(placement.device),
            "model_repository": str(self._folder.parent),
            "model_version": self._version,
            "model_name": self._config.name,
        }
        try:
            process.send(Initialize(args, self._config.decoupled, sequence is not None and sequence.iterative_sequence))
            initialized: Initialized = self._await(process, Initialized, instance)
        except BaseException:
            process.end(0.0)
            raise
        return process, initialized

    def _open(self) -> tuple[ModelProcess, bool]:
        try:
            process = ModelProcess(self._config.name, self._python)
        except OSError as error:
            raise self._fault(Code.UNAVAILABLE, f"cannot start its process: {error}") from None
        try:
            process.send(Open(str(self._folder), self._filename, self._version))
            return process, self._await(process, Opened, None).completes
        except BaseException:
            process.end(0.0)
            raise

    def _await(self, process: ModelProcess, kind: type, instance: PythonInstance | None) -> Any:
        """The next frame of `kind`; meanwhile what the model logs and asks for is done for it."""
        limit = self._options.initialize_timeout_secs
        end = time.monotonic() + limit if limit else math.inf
        while time.monotonic() < end:
            if self.supervisor.stopping.is_set():
                raise self._fault(Code.UNAVAILABLE, "it is being unloaded")
            try:
                frames = process.poll(min(_LOOK, end - time.monotonic()))
            except ProcessEndedError as error:
                raise self._fault(Code.INTERNAL, f"its process {process.reap(error)} while it was loading") from None
            for frame, unpacker in frames:
                match frame:
                    case Failed(message):
                        raise self._fault(Code.INTERNAL, message)
                    case Log(level, message):
                        log.log(level, "%s: %s", self._config.name, message)
                    case _ if isinstance(frame, kind):
                        return frame
                    case _ if instance is not None:
                        instance.handle(frame, unpacker)
                    case _:
                        raise self._fault(Code.INVALID, "it asks for the server's services before initialize")
            if instance is not None:
                instance.mailbox.settle()
        raise self._fault(Code.DEADLINE, f"it took longer than {limit:g} s to load")

    def _fault(self, code: Code, text: str) -> ServingError:
        return ServingError(code, f"model '{self._config.name}': {text}")


def config_texts(
    to_json: Callable[[ModelConfig], Any], parse_json: Callable[[str, str], ModelConfig]
) -> tuple[ConfigToText, ConfigOfText]:
    """The two functions of a backend, from those of the repository."""
    return (lambda config: json.dumps(to_json(config))), partial(_parse, parse_json)


def _parse(parse_json: Callable[[str, str], ModelConfig], text: str) -> ModelConfig:
    return parse_json(text, "auto_complete_config")
