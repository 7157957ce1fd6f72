"""An ensemble's steps as a graph, checked against its models when it is loaded. Pure; texts are Triton's (core's ensemble_utils)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from backends.api.errors import Code, ServingError
from backends.api.model_config import Ensemble, EnsembleStep, ModelConfig, TensorSpec

ROOT = -1
"""The flow that a request opens, as opposed to those of a decoupled step's answers."""


@dataclass(frozen=True, slots=True)
class Step:
    """`version` "" is the newest. `optional` are those of its inputs that may be absent.

    `flow` is the decoupled step, if any, whose every answer this step runs for: the last one before it. Several
    decoupled steps before it stand in one line, as `EnsembleGraph.of` sees to.
    """

    index: int
    model: str
    version: str
    namespace: str
    inputs: Mapping[str, str]  # the model's input -> ensemble tensor
    outputs: Mapping[str, str]  # the model's output -> ensemble tensor
    optional: frozenset[str]
    is_decoupled: bool
    flow: int


@dataclass(frozen=True, slots=True)
class EnsembleGraph:
    """`writers`: ensemble tensor -> the step it comes from; inputs of the ensemble have none."""

    name: str
    steps: tuple[Step, ...]
    writers: Mapping[str, Step]
    outputs: tuple[str, ...]

    @property
    def is_decoupled(self) -> bool:
        return any(step.is_decoupled for step in self.steps)

    def needed(self, outputs: Sequence[str]) -> frozenset[int]:
        """The steps without which `outputs` cannot be."""
        needed = set[int]()
        waiting = [self.writers[name] for name in outputs if name in self.writers]
        while waiting:
            step = waiting.pop()
            if step.index not in needed:
                needed.add(step.index)
                waiting += [self.writers[tensor] for tensor in step.inputs.values() if tensor in self.writers]
        return frozenset(needed)

    def flow_of(self, tensors: Sequence[str]) -> int:
        """The flow in which all of `tensors` are known."""
        flows = [_own_flow(self.writers[name]) for name in tensors if name in self.writers]
        return max(flows, key=self._depth, default=ROOT)

    def _depth(self, flow: int) -> int:
        depth = 0
        while flow != ROOT:
            depth, flow = depth + 1, self.steps[flow].flow
        return depth

    @classmethod
    def of(cls, config: ModelConfig, models: Sequence[ModelConfig]) -> "EnsembleGraph":
        """`models` are the configs of the steps' models, step by step. `config` is sound by itself.

        Raises ServingError(INVALID) for the first thing that does not fit.
        """
        assert config.ensemble is not None
        _check(config, config.ensemble, models)
        steps: dict[int, Step] = {}
        lines: dict[int, tuple[int, ...]] = {}  # step -> the decoupled steps that its answers went through
        before = _predecessors(config.ensemble)
        for index in _in_order(before):
            given = [lines[other] for other in before[index]]
            line = max(given, key=len, default=())
            if any(line[: len(other)] != other for other in given):
                raise _fault(
                    config,
                    f"step of model '{models[index].name}' receives inputs originated from different decoupled models",
                )
            steps[index] = _step(index, config.ensemble.steps[index], models[index], line[-1] if line else ROOT)
            lines[index] = (*line, index) if models[index].decoupled else line
        _check_answer(config, config.ensemble, lines)
        ordered = tuple(steps[index] for index in range(len(steps)))
        writers = {tensor: step for step in ordered for tensor in step.outputs.values()}
        return cls(config.name, ordered, writers, tuple(spec.name for spec in config.outputs))


def _own_flow(step: Step) -> int:
    return step.index if step.is_decoupled else step.flow


def _step(index: int, step: EnsembleStep, model: ModelConfig, flow: int) -> Step:
    optional = frozenset(spec.name for spec in model.inputs if spec.optional)
    version = str(step.model_version) if step.model_version > 0 else ""
    return Step(
        index,
        step.model_name,
        version,
        step.model_namespace,
        step.input_map,
        step.output_map,
        optional,
        model.decoupled,
        flow,
    )


def _predecessors(ensemble: Ensemble) -> dict[int, set[int]]:
    writers = {tensor: index for index, step in enumerate(ensemble.steps) for tensor in step.output_map.values()}
    return {
        index: {writers[tensor] for tensor in step.input_map.values() if tensor in writers}
        for index, step in enumerate(ensemble.steps)
    }


def _in_order(before: Mapping[int, set[int]]) -> Iterator[int]:
    """Each step after those it needs; the config's own check has found circles."""
    done = set[int]()
    while len(done) < len(before):
        ready = [index for index, needs in before.items() if index not in done and needs <= done]
        assert ready, "a circle of steps"
        yield from ready
        done.update(ready)


def _check_answer(config: ModelConfig, ensemble: Ensemble, lines: Mapping[int, tuple[int, ...]]) -> None:
    """An answer's outputs must be known together."""
    names = {spec.name for spec in config.outputs}
    given = [lines[index] for index, step in enumerate(ensemble.steps) if names.intersection(step.output_map.values())]
    line = max(given, key=len, default=())
    if any(line[: len(other)] != other for other in given):
        raise _fault(config, "its outputs originate from different decoupled models")


@dataclass(frozen=True, slots=True)
class _Inferred:
    """What an ensemble tensor is according to `model`; `full` has the batch dimension."""

    model: str
    datatype: str
    dims: tuple[int, ...]
    full: tuple[int, ...]

    @classmethod
    def of(cls, model: ModelConfig, spec: TensorSpec) -> "_Inferred":
        batch = (-1,) if model.max_batch_size > 0 else ()
        return cls(model.name, spec.datatype, spec.dims, batch + spec.dims)

    @classmethod
    def inside(cls, ensemble: ModelConfig, spec: TensorSpec) -> "_Inferred":
        """An input or output of the ensemble as its steps see it."""
        return cls.of(ensemble, spec if spec.reshape is None else replace(spec, dims=spec.reshape))


def _check(config: ModelConfig, ensemble: Ensemble, models: Sequence[ModelConfig]) -> None:
    tensors = {spec.name: _Inferred.inside(config, spec) for spec in (*config.inputs, *config.outputs)}
    for step, model in zip(ensemble.steps, models, strict=True):
        # one without batching may take part where the shapes agree, and is given whole batches
        if 0 != model.max_batch_size < config.max_batch_size:
            raise ServingError(
                Code.INVALID,
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{model.name} which only allows maximum batch size to be {model.max_batch_size}",
            )
        _check_inputs(config, step, model, tensors)
        _check_outputs(config, step, model, tensors)


def _check_inputs(config: ModelConfig, step: EnsembleStep, model: ModelConfig, tensors: dict[str, _Inferred]) -> None:
    for name, tensor in step.input_map.items():
        spec = model.input(name)
        if spec is None:
            text = f"ensemble tensor {tensor} is mapping to non-existing input {name} in model {model.name}"
            raise _fault(config, text)
        _agree(config, tensor, tensors.setdefault(tensor, _Inferred.of(model, spec)), _Inferred.of(model, spec))
    for spec in model.inputs:
        if spec.name not in step.input_map and not spec.optional:
            raise _fault(config, f"input {spec.name} in model {model.name} is not mapped to any ensemble tensors")


def _check_outputs(config: ModelConfig, step: EnsembleStep, model: ModelConfig, tensors: dict[str, _Inferred]) -> None:
    for name, tensor in step.output_map.items():
        spec = model.output(name)
        if spec is None:
            text = f"ensemble tensor {tensor} is mapped from non-existing output {name} in model {model.name}"
            raise _fault(config, text)
        _agree(config, tensor, tensors.setdefault(tensor, _Inferred.of(model, spec)), _Inferred.of(model, spec))


def _agree(config: ModelConfig, tensor: str, one: _Inferred, other: _Inferred) -> None:
    if one.datatype != other.datatype:
        raise _fault(
            config,
            f"ensemble tensor {tensor}: inconsistent data type: {_type_name(one.datatype)} is inferred from model "
            f"{one.model} while {_type_name(other.datatype)} is inferred from model {other.model}",
        )
    if not _match(one.dims, other.dims) and not _match(one.full, other.full):
        raise _fault(
            config,
            f"ensemble tensor {tensor}: inconsistent shape: {_shape(one.full)} is inferred from model {one.model} "
            f"while {_shape(other.full)} is inferred from model {other.model}",
        )


def _match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """A variable dimension agrees with any, and is looked at again when there is a tensor."""
    return len(one) == len(other) and all(-1 in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True))


def _type_name(datatype: str) -> str:
    return "TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}"


def _shape(shape: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"


def _fault(config: ModelConfig, text: str) -> ServingError:
    return ServingError(Code.INVALID, f"in ensemble {config.name}, {text}")
