"""A custom model's process: imports the model, and calls it as the server says."""

import ctypes
import faulthandler
import importlib.util
import inspect
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections import deque
from pathlib import Path
from types import ModuleType
from typing import Any

from backends.python import pb_config, triton_python_backend_utils
from backends.python.arena import Arena
from backends.python.execution import Execution, describe
from backends.python.frames import (
    Complete,
    Completed,
    Failed,
    Finalize,
    Finalized,
    Initialize,
    Initialized,
    Log,
    Open,
    Opened,
    Work,
)
from backends.python.link import Link
from backends.python.packing import Unpacker
from backends.python.readiness import Readiness
from backends.python.runtime import Runtime, set_runtime

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> None:
    sock, arena_in, arena_out, parent = (int(text) for text in sys.argv[1:5])
    _die_with(parent)
    faulthandler.enable()
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    link = Link(socket.socket(fileno=sock), Arena(arena_in), Arena(arena_out))
    os.register_at_fork(after_in_child=link.leave)
    runtime = Runtime(link)
    set_runtime(runtime)
    sys.modules["triton_python_backend_utils"] = triton_python_backend_utils
    sys.modules["c_python_backend_utils"] = triton_python_backend_utils
    Child(link, runtime).run()


class Child:
    """Takes the steps of the model's life in the order they are asked for."""

    def __init__(self, link: Link, runtime: Runtime) -> None:
        self._link = link
        self._runtime = runtime
        self._orders: deque[Any] = deque()
        self._execution: Execution | None = None
        self._class: Any = None
        self._model: Any = None
        for kind in (Open, Complete, Initialize, Finalize):
            link.handlers[kind] = self._on_order
        link.handlers[Work] = self._on_work

    def run(self) -> None:
        while True:
            self._link.wait(lambda: bool(self._orders))
            order = self._orders.popleft()
            try:
                if self._obey(order):
                    return
            except BaseException as error:  # SystemExit too is a reason why a model does not load
                self._link.send(Log(logging.ERROR, traceback.format_exc().rstrip()))
                self._link.send(Failed(describe(error)))

    def _obey(self, order: Any) -> bool:
        """Whether that was the last step."""
        match order:
            case Open():
                self._class = _import_class(order)
                self._link.send(Opened(hasattr(self._class, "auto_complete_config")))
            case Complete(config):
                self._link.send(Completed(self._complete(config)))
            case Initialize():
                self._initialize(order)
            case Finalize():
                self._finalize()
                return True
        return False

    def _complete(self, config: str) -> str:
        completed = self._class.auto_complete_config(pb_config.ModelConfig(config))
        if not isinstance(completed, pb_config.ModelConfig):
            raise TypeError(f"auto_complete_config must return the ModelConfig, got {type(completed).__name__}")
        return json.dumps(completed.as_dict())

    def _initialize(self, order: Initialize) -> None:
        self._runtime.decoupled = order.decoupled
        self._runtime.iterative = order.iterative
        self._model = model = self._class()
        if not callable(getattr(model, "execute", None)):
            raise TypeError("TritonPythonModel has no method execute")
        if hasattr(model, "initialize"):
            model.initialize(dict(order.args))
        is_async = inspect.iscoroutinefunction(model.execute)
        has_is_ready = callable(getattr(model, "is_ready", None))
        self._execution = execution = Execution(
            model, self._runtime, order.args["model_instance_name"], order.decoupled
        )
        if has_is_ready:
            Readiness(model, self._link, lambda: self._runtime.loop)
        self._link.send(Initialized(is_async, has_is_ready))
        execution.serve(self._orders, is_async)

    def _finalize(self) -> None:
        text = ""
        try:
            if hasattr(self._model, "finalize"):
                self._model.finalize()
        except BaseException as error:
            text = describe(error)
        self._model = None
        self._runtime.end()
        self._link.send(Finalized(text))

    def _on_order(self, order: Any, _: Unpacker) -> None:
        self._orders.append(order)
        if self._execution is not None:
            self._execution.interrupt()

    def _on_work(self, work: Work, unpacker: Unpacker) -> None:
        assert self._execution is not None
        self._execution.add(work, unpacker)


def _import_class(order: Open) -> Any:
    """`TritonPythonModel` of the model's file, imported as `<version>.<file>` so that relative imports work."""
    folder = Path(order.folder)
    path = folder / order.filename
    sys.path.insert(0, str(folder))
    sys.path.append(str(folder.parent))
    pb_config.set_model_dir(str(folder))
    package = ModuleType(order.version)
    package.__path__ = [str(folder)]
    sys.modules[order.version] = package
    spec = importlib.util.spec_from_file_location(f"{order.version}.{path.stem}", path)
    assert spec is not None, path
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not hasattr(module, "TritonPythonModel"):
        raise AttributeError(f"module '{path.name}' has no class TritonPythonModel")
    return module.TritonPythonModel


def _die_with(parent: int) -> None:
    """No orphans: the system ends this process when the server's does, whatever the model is busy with."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
