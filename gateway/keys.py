"""API keys: what each may do, and which one a request carries.

Only SHA-256 digests are kept. Keys are random and long, so a slow password hash would add cost and no safety.
"""

import hashlib
import hmac
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase

from backends.api.errors import Code, ServingError


class Face(Enum):
    OPENAI = "openai"
    KSERVE = "kserve"
    ADMIN = "admin"  # what changes the server: load, unload, shared memory, trace and log settings


EVERY_FACE = frozenset(Face)
ORDINARY_FACES = frozenset({Face.OPENAI, Face.KSERVE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key's rights. `models` are names or patterns (`llama-*`); limits are None where there is none.

    `priority` is the most urgent (lowest) number its requests may carry. `name` is for logs and messages; nothing
    here tells the key itself.
    """

    name: str
    digest: bytes
    models: tuple[str, ...] = ("*",)
    faces: frozenset[Face] = ORDINARY_FACES
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    priority: int = 0

    def may_use(self, model: str) -> bool:
        return self.may_use_all or any(fnmatchcase(model, pattern) for pattern in self.models)

    @property
    def may_use_all(self) -> bool:
        return "*" in self.models

    @property
    def cache_salt(self) -> str:
        """The same after every start, and of no use for finding the key."""
        return hashlib.sha256(b"tidegate cache salt\0" + self.digest).hexdigest()[:32]


class KeyRing:
    """The keys there are."""

    def __init__(self, keys: Sequence[Key]) -> None:
        self._keys = tuple(keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[Key]:
        return iter(self._keys)

    def find(self, authorization: str) -> Key:
        """The key in an Authorization header. Raises ServingError(UNAUTHENTICATED), which never quotes it.

        Every key is compared, each in constant time, so that an answer's time tells nothing about how near a guess is.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            raise _unauthenticated("an API key is needed: send it as 'Authorization: Bearer KEY'")
        digest = digest_of(token)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(digest, key.digest):
                found = key
        if found is None:
            raise _unauthenticated("the API key is not one of this server's")
        return found


def digest_of(key: str) -> bytes:
    # what HTTP servers and gRPC give us are bytes read as latin-1: both sides are hashed as those bytes
    return hashlib.sha256(key.encode("latin-1", "replace")).digest()


def _unauthenticated(message: str) -> ServingError:
    return ServingError(Code.UNAUTHENTICATED, message, reason="invalid_api_key")
