"""The names of full blocks: a chained hash of everything the keys and values in them depend on."""

import struct
from collections.abc import Sequence
from functools import cache
from hashlib import blake2b

_VERSION = b"tidegate kv 1"


def root_hash(fingerprint: str, salt: str = "", adapter: str = "") -> bytes:
    """The parent of a sequence's first block.

    Fields are tagged and carry their length, so a salt can never pass for an adapter of the same name. Equal in
    every process and on every machine, so replicas agree on names.
    """
    digest = blake2b(_VERSION, digest_size=32)
    for tag, value in ((b"model", fingerprint), (b"salt", salt), (b"adapter", adapter)):
        data = value.encode("utf-8", "surrogatepass")
        digest.update(tag + len(data).to_bytes(8, "little") + data)
    return digest.digest()


def extend_chain(hashes: list[bytes], root: bytes, tokens: Sequence[int], block_size: int) -> None:
    """Append to `hashes` the names of those full blocks of `tokens` that it lacks."""
    pack = _packer(block_size)
    parent = hashes[-1] if hashes else root
    for start in range(len(hashes) * block_size, len(tokens) - block_size + 1, block_size):
        parent = blake2b(parent + pack(*tokens[start : start + block_size]), digest_size=32).digest()
        hashes.append(parent)


@cache
def _packer(block_size: int):  # type: ignore[no-untyped-def]  # the bound method of a Struct
    return struct.Struct(f"<{block_size}I").pack
