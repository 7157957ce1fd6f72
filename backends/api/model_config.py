"""A model's configuration: Triton's ModelConfig as frozen types.

Made and checked in `model_repository` (from config.pbtxt, completed by the backend), never written
afterwards. Field meanings and defaults are Triton's. Datatypes are KServe v2 names (`FP32`, `BYTES`),
durations stay in the unit of their name.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An input or output. `dims` leave out the batch dimension; -1 is variable. `reshape` None: as `dims`."""

    name: str
    datatype: str
    dims: tuple[int, ...]
    reshape: tuple[int, ...] | None = None
    is_shape_tensor: bool = False
    is_non_linear_format_io: bool = False
    # inputs alone
    format: str = "FORMAT_NONE"
    allow_ragged_batch: bool = False
    optional: bool = False
    # outputs alone
    label_filename: str = ""


@dataclass(frozen=True, slots=True)
class BatchInput:
    """A tensor the server makes for each batch, from `source_inputs`; `kind` is Triton's name of the rule."""

    kind: str
    target_names: tuple[str, ...]
    datatype: str
    source_inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BatchOutput:
    kind: str
    target_names: tuple[str, ...]
    source_inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which version folders are served: the `latest` n, all (`latest` 0, no `specific`), or the `specific` ones."""

    latest: int = 1
    specific: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RateLimiterResource:
    name: str
    count: int
    is_global: bool = False


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    name: str = ""
    kind: str = "KIND_AUTO"
    count: int = 1
    gpus: tuple[int, ...] = ()
    profile: tuple[str, ...] = ()
    passive: bool = False
    host_policy: str = ""
    secondary_devices: tuple[tuple[str, int], ...] = ()
    resources: tuple[RateLimiterResource, ...] = ()
    resource_priority: int = 0


class TimeoutAction(Enum):
    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How long and how many may wait at one priority level. 0 is unlimited."""

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = QueuePolicy()
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SequenceControl:
    """One control of a sequence batcher: `kind` START, END, READY or CORRID, sent in input `name`.

    `false_true` are the two values of a flag; `datatype` that of CORRID or of the flag's input.
    """

    name: str
    kind: str
    datatype: str
    false_true: tuple[int | float | bool, int | float | bool] | None = None


@dataclass(frozen=True, slots=True)
class InitialState:
    name: str
    datatype: str
    dims: tuple[int, ...]
    data_file: str = ""  # "" is zero_data


@dataclass(frozen=True, slots=True)
class SequenceState:
    """Implicit state: what the model writes to `output_name` comes back in `input_name` at the next step."""

    input_name: str
    output_name: str
    datatype: str
    dims: tuple[int, ...]
    initial_state: InitialState | None = None
    use_same_buffer_for_input_output: bool = False
    use_growable_memory: bool = False


@dataclass(frozen=True, slots=True)
class DirectStrategy:
    max_queue_delay_microseconds: int = 0
    minimum_slot_utilization: float = 0.0


@dataclass(frozen=True, slots=True)
class OldestStrategy:
    max_candidate_sequences: int = 0
    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0
    preserve_ordering: bool = False


@dataclass(frozen=True, slots=True)
class SequenceBatching:
    strategy: DirectStrategy | OldestStrategy = DirectStrategy()
    max_sequence_idle_microseconds: int = 1_000_000
    controls: tuple[SequenceControl, ...] = ()
    states: tuple[SequenceState, ...] = ()
    iterative_sequence: bool = False


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """`input_map`: model input -> ensemble tensor; `output_map`: model output -> ensemble tensor. Version -1: latest."""

    model_name: str
    model_version: int
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    model_namespace: str = ""


@dataclass(frozen=True, slots=True)
class Ensemble:
    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int = 0


@dataclass(frozen=True, slots=True)
class Accelerator:
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Optimization:
    graph_level: int = 0
    priority: str = "PRIORITY_DEFAULT"
    gpu_accelerators: tuple[Accelerator, ...] = ()
    cpu_accelerators: tuple[Accelerator, ...] = ()
    input_pinned_memory: bool = True
    output_pinned_memory: bool = True
    cuda_graphs: bool = False
    gather_kernel_buffer_threshold: int = 0
    eager_batching: bool = False


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """`source` is "zero_data", "random_data" or the name of a file in the model's `warmup` folder."""

    datatype: str
    dims: tuple[int, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Warmup:
    name: str
    batch_size: int
    inputs: Mapping[str, WarmupInput]
    count: int = 0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model. `max_batch_size` 0: shapes are complete; n: a batch dimension of up to n stands before `dims`."""

    name: str
    backend: str = ""
    platform: str = ""
    runtime: str = ""
    max_batch_size: int = 0
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    batch_inputs: tuple[BatchInput, ...] = ()
    batch_outputs: tuple[BatchOutput, ...] = ()
    version_policy: VersionPolicy = VersionPolicy()
    instance_groups: tuple[InstanceGroup, ...] = ()
    dynamic_batching: DynamicBatching | None = None
    sequence_batching: SequenceBatching | None = None
    ensemble: Ensemble | None = None
    decoupled: bool = False
    response_cache: bool = False
    default_model_filename: str = ""
    cc_model_filenames: Mapping[str, str] = field(default_factory=dict)
    metric_tags: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    optimization: Optimization = Optimization()
    warmup: tuple[Warmup, ...] = ()
    op_library_filenames: tuple[str, ...] = ()
    repository_agents: tuple[Accelerator, ...] = ()
    response_histogram_buckets: tuple[float, ...] = ()  # of the time to the first response, in ms; () the default ones

    @property
    def first_response_bounds(self) -> tuple[float, ...]:
        """The same buckets in seconds."""
        return tuple(bound / 1000 for bound in self.response_histogram_buckets)

    def input(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.inputs if spec.name == name), None)

    def output(self, name: str) -> TensorSpec | None:
        return next((spec for spec in self.outputs if spec.name == name), None)
