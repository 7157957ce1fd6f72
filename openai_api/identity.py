"""What stays the same over an answer and all its chunks."""

import secrets
import time
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identity:
    """`id` is ours and cannot be guessed; `model` is the name the request used; `created` in Unix seconds."""

    id: str
    model: str
    echo_service_tier: bool = False
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, model: str, echo_service_tier: bool = False) -> "Identity":
        return cls(f"{prefix}{secrets.token_hex(16)}", model, echo_service_tier)

    def as_json(self, kind: str) -> dict[str, object]:
        """The members every object of the answer starts with; `kind` is its `object`."""
        members: dict[str, object] = {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
        }
        if self.echo_service_tier:
            members["service_tier"] = "default"
        return members
