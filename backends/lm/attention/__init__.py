"""Attention over the paged pool of keys and values: one file a kernel family, all with the same meaning.

    numba_paged   x86 servers: kernels generated on the machine, for decode and (chunked) prefill alike
                  (`paged_args` what they are given, `paged_pool` layout and writing, `paged_attend` the kernel)
    varlen        CUDA: torch's own paged kernel
    torch_gather  anywhere: gather a sequence's blocks, grouped heads, plain torch
    reference     dense float32, for tests

Each owns its layer's pool and its layout; nothing else reads it. Slot t of the pool is block t // block_size,
offset t % block_size.
"""
