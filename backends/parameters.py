"""The parameters of a config.pbtxt that backends know which, like Triton's, ignore any other.

A custom model's parameters are its own, and the engines of language and pooling models refuse what they do not know.
"""

from collections.abc import Iterator
from difflib import get_close_matches

from backends.api.model_config import ModelConfig

_ONNX = """
intra_op_thread_count inter_op_thread_count execution_mode enable_mem_arena enable_mem_pattern
memory.enable_memory_arena_shrinkage cudnn_conv_algo_search cudnn_conv_use_max_workspace gpu_mem_limit
arena_extend_strategy do_copy_in_default_stream use_tf32
"""
_TORCH = """
INFERENCE_MODE DISABLE_OPTIMIZED_EXECUTION ENABLE_CACHE_CLEANING INTRA_OP_THREAD_COUNT NUM_THREADS
INTER_OP_THREAD_COUNT NUM_INTEROP_THREADS ENABLE_WEIGHT_SHARING ENABLE_JIT_EXECUTOR ENABLE_JIT_PROFILING DISABLE_CUDNN
TORCH_COMPILE_OPTIONAL_PARAMETERS MODULE_CLASS MODULE_ARGUMENTS
"""
KNOWN_PARAMETERS = {
    "onnxruntime": tuple(_ONNX.split()),
    "pytorch": tuple(_TORCH.split()),
    "identity": ("execute_delay_ms",),
}
_PASSED_ON = "session."  # to ONNX Runtime, as they are


def ignored_parameters(config: ModelConfig) -> Iterator[str]:
    """A text for each parameter of `config` that its backend does not look at."""
    known = KNOWN_PARAMETERS.get(config.backend, ())
    for name in config.parameters if known else ():
        if name in known or (config.backend == "onnxruntime" and name.startswith(_PASSED_ON)):
            continue
        near = get_close_matches(name, known, n=1)
        hint = f", did you mean '{near[0]}'?" if near else f", which knows: {', '.join(known)}"
        yield f"parameter '{name}' is ignored by backend '{config.backend}'{hint}"
