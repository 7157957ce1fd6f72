"""Inputs, outputs and batch tensors of `ModelConfig` to and from protobuf."""

from typing import Any

from tritonclient.grpc import model_config_pb2 as pb

from backends.api.model_config import BatchInput, BatchOutput, TensorSpec


def datatype_from_proto(number: int) -> str:
    """The KServe name of a DataType value; "" for TYPE_INVALID, which is also an unset field."""
    name = str(pb.DataType.Name(number)).removeprefix("TYPE_")
    return {"STRING": "BYTES", "INVALID": ""}.get(name, name)


def datatype_to_proto(name: str) -> int:
    return int(pb.DataType.Value("TYPE_" + {"BYTES": "STRING", "": "INVALID"}.get(name, name)))


def input_from_proto(item: Any) -> TensorSpec:
    return TensorSpec(
        name=item.name,
        datatype=datatype_from_proto(item.data_type),
        dims=tuple(item.dims),
        reshape=tuple(item.reshape.shape) if item.HasField("reshape") else None,
        is_shape_tensor=item.is_shape_tensor,
        is_non_linear_format_io=item.is_non_linear_format_io,
        format=pb.ModelInput.Format.Name(item.format),
        allow_ragged_batch=item.allow_ragged_batch,
        optional=item.optional,
    )


def output_from_proto(item: Any) -> TensorSpec:
    return TensorSpec(
        name=item.name,
        datatype=datatype_from_proto(item.data_type),
        dims=tuple(item.dims),
        reshape=tuple(item.reshape.shape) if item.HasField("reshape") else None,
        is_shape_tensor=item.is_shape_tensor,
        is_non_linear_format_io=item.is_non_linear_format_io,
        label_filename=item.label_filename,
    )


def _reshape_to_proto(spec: TensorSpec) -> Any:
    return None if spec.reshape is None else pb.ModelTensorReshape(shape=spec.reshape)


def input_to_proto(spec: TensorSpec) -> Any:
    return pb.ModelInput(
        name=spec.name,
        data_type=datatype_to_proto(spec.datatype),
        format=spec.format,
        dims=spec.dims,
        reshape=_reshape_to_proto(spec),
        is_shape_tensor=spec.is_shape_tensor,
        allow_ragged_batch=spec.allow_ragged_batch,
        optional=spec.optional,
        is_non_linear_format_io=spec.is_non_linear_format_io,
    )


def output_to_proto(spec: TensorSpec) -> Any:
    return pb.ModelOutput(
        name=spec.name,
        data_type=datatype_to_proto(spec.datatype),
        dims=spec.dims,
        reshape=_reshape_to_proto(spec),
        label_filename=spec.label_filename,
        is_shape_tensor=spec.is_shape_tensor,
        is_non_linear_format_io=spec.is_non_linear_format_io,
    )


def batch_input_from_proto(item: Any) -> BatchInput:
    return BatchInput(
        pb.BatchInput.Kind.Name(item.kind),
        tuple(item.target_name),
        datatype_from_proto(item.data_type),
        tuple(item.source_input),
    )


def batch_input_to_proto(item: BatchInput) -> Any:
    return pb.BatchInput(
        kind=item.kind,
        target_name=item.target_names,
        data_type=datatype_to_proto(item.datatype),
        source_input=item.source_inputs,
    )


def batch_output_from_proto(item: Any) -> BatchOutput:
    return BatchOutput(pb.BatchOutput.Kind.Name(item.kind), tuple(item.target_name), tuple(item.source_input))


def batch_output_to_proto(item: BatchOutput) -> Any:
    return pb.BatchOutput(kind=item.kind, target_name=item.target_names, source_input=item.source_inputs)
