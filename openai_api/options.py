"""What an operator may set about the OpenAI face. Filled in by the gateway's settings."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIOptions:
    """Limits and intervals of the OpenAI face; times in seconds.

    `request_timeout` None: a request may wait and run as long as its client stays. `keep_alive_interval` 0: no
    heartbeats. `max_choices` bounds `n`, `max_prompts` the prompts of a text completion and also prompts times `n`.
    `strict_max_tokens`: refuse a `max_tokens` that does not fit beside the prompt instead of clamping it.
    `log_request_chars` of each body are logged: 0, or what the operator wants to see of what people write.
    """

    max_body_bytes: int = 16 * 2**20
    body_timeout: float = 60.0
    request_timeout: float | None = None
    keep_alive_interval: float = 12.0
    send_timeout: float = 60.0
    max_choices: int = 128
    max_prompts: int = 1024
    max_messages: int = 4096
    strict_max_tokens: bool = False
    log_request_chars: int = 0
