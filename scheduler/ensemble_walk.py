"""One request's way through an ensemble: which step runs when, and which answers come of it. Pure.

A flow holds the tensors that belong together. A request opens the root flow; every answer of a decoupled step opens
a flow below the one in which the step ran, and sees the tensors of those above it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from backends.api.errors import Code, ServingError
from backends.api.tensor import Tensor
from scheduler.ensemble_graph import ROOT, EnsembleGraph, Step


@dataclass(slots=True, eq=False)
class _Flow:
    """`origin` is the decoupled step whose answer opened it, `cause` the call. `num_open`: calls and flows in it."""

    origin: int = ROOT
    above: "_Flow | None" = None
    cause: "Call | None" = None
    values: dict[str, Tensor | None] = field(default_factory=dict)  # None: known to be absent
    below: "dict[_Flow, None]" = field(default_factory=dict)
    started: set[int] = field(default_factory=set)
    is_answered: bool = False
    num_open: int = 0

    def knows(self, name: str) -> bool:
        return name in self.values or (self.above is not None and self.above.knows(name))

    def get(self, name: str) -> Tensor | None:
        if name in self.values or self.above is None:
            return self.values.get(name)
        return self.above.get(name)


@dataclass(slots=True, eq=False)
class Call:
    """A step to be run on `inputs`; of its outputs `outputs` are wanted. `num_inflight`: its answers' flows still open."""

    step: Step
    inputs: list[Tensor]
    outputs: list[str]
    flow: _Flow
    num_answers: int = 0
    num_inflight: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """What the ensemble says, in the order wanted."""

    outputs: list[Tensor]


Act = Call | Answer


class Walk:
    """Begin it, tell it what the calls bring, and do what it returns, until `is_over`.

    Every method may raise ServingError(INVALID or INTERNAL) for a tensor that is missing where it is needed; the walk has then
    failed as a whole.
    """

    def __init__(
        self, graph: EnsembleGraph, inputs: Iterable[Tensor], input_names: Iterable[str], wanted: tuple[str, ...]
    ) -> None:
        """`wanted` are the outputs asked for; `input_names` those the ensemble may be given."""
        self._graph = graph
        self._wanted = wanted or graph.outputs
        self._answer_flow = graph.flow_of(self._wanted)
        needed = graph.needed(self._wanted)
        self._steps = [step for step in graph.steps if step.index in needed]
        self._read = {tensor for step in self._steps for tensor in step.inputs.values()} | set(self._wanted)
        self._num_calls = 0
        self._root = _Flow()
        given = {tensor.name: tensor for tensor in inputs}
        self._root.values = {name: given.get(name) for name in input_names}

    @property
    def is_over(self) -> bool:
        return self._num_calls == 0

    def begin(self) -> list[Act]:
        return self._advance(self._root)

    def answered(self, call: Call, outputs: Iterable[Tensor]) -> list[Act]:
        """One answer of `call`'s model, with all or some of the outputs wanted."""
        given = {tensor.name: tensor for tensor in outputs}
        call.num_answers += 1
        flow = call.flow
        if call.step.is_decoupled:
            flow = _Flow(call.step.index, call.flow, call)
            call.flow.below[flow] = None
            call.flow.num_open += 1
            call.num_inflight += 1
        elif call.num_answers > 1:
            raise _broken(f"model '{call.step.model}' gave more than one answer")
        for name, tensor in call.step.outputs.items():
            if tensor in self._read:
                value = given.get(name)
                flow.values[tensor] = None if value is None else _renamed(value, tensor)
        acts = self._advance(flow)
        self._close(flow)
        return acts

    def ended(self, call: Call) -> None:
        """`call` brings nothing more."""
        if not call.num_answers and not call.step.is_decoupled:
            raise _broken(f"model '{call.step.model}' gave no answer")
        self._num_calls -= 1
        call.flow.num_open -= 1
        self._close(call.flow)

    def _advance(self, flow: _Flow) -> list[Act]:
        """What has become possible in `flow` and below it."""
        acts: list[Act] = []
        for step in self._steps:
            is_next = step.flow == flow.origin and step.index not in flow.started
            if is_next and all(map(flow.knows, step.inputs.values())):
                acts.append(self._call(step, flow))
        if flow.origin == self._answer_flow and not flow.is_answered and all(map(flow.knows, self._wanted)):
            flow.is_answered = True
            acts.append(Answer([self._output(name, flow) for name in self._wanted]))
        for below in list(flow.below):
            acts += self._advance(below)
        return acts

    def _call(self, step: Step, flow: _Flow) -> Call:
        flow.started.add(step.index)
        flow.num_open += 1
        self._num_calls += 1
        inputs = []
        for name, tensor in step.inputs.items():
            value = flow.get(tensor)
            if value is not None:
                inputs.append(_renamed(value, name))
            elif name not in step.optional:
                raise self._missing(tensor, f"which input '{name}' of step model '{step.model}' needs")
        outputs = [name for name, tensor in step.outputs.items() if tensor in self._read]
        return Call(step, inputs, outputs, flow)

    def _output(self, name: str, flow: _Flow) -> Tensor:
        value = flow.get(name)
        if value is None:
            raise self._missing(name, "which is asked for")
        return value

    def _missing(self, tensor: str, why: str) -> ServingError:
        writer = self._graph.writers.get(tensor)
        if writer is None:
            return ServingError(Code.INVALID, f"the request has no input '{tensor}', {why}")
        output = next(name for name, target in writer.outputs.items() if target == tensor)
        return _broken(f"step model '{writer.model}' gave no output '{output}' for tensor '{tensor}', {why}")

    def _close(self, flow: _Flow) -> None:
        """Let go of a flow that has done all it can, and then perhaps of those above it."""
        while flow.num_open == 0 and flow.above is not None and flow in flow.above.below and self._is_done(flow):
            del flow.above.below[flow]
            flow.above.num_open -= 1
            assert flow.cause is not None
            flow.cause.num_inflight -= 1
            flow = flow.above

    def _is_done(self, flow: _Flow) -> bool:
        """Not so one that waits for a tensor of a flow above."""
        if flow.origin == self._answer_flow and not flow.is_answered:
            return False
        return all(step.index in flow.started for step in self._steps if step.flow == flow.origin)


def _renamed(tensor: Tensor, name: str) -> Tensor:
    return Tensor(name, tensor.datatype, tensor.shape, tensor.data)


def _broken(text: str) -> ServingError:
    return ServingError(Code.INTERNAL, text)
