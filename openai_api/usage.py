"""How many tokens a request took, as the `usage` object counts them."""

from dataclasses import dataclass


@dataclass(slots=True)
class Usage:
    """`prompt` counts each prompt once, however many choices share it; `cached` is the part of it that was found
    in the prefix cache; `completion` counts every generated token of every choice, `reasoning` those of them that were
    thought and not said."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    reasoning: int = 0

    def as_json(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
            "completion_tokens_details": {"reasoning_tokens": self.reasoning},
        }

    def as_response_json(self) -> dict[str, object]:
        """The same in the words of `/v1/responses`."""
        return {
            "input_tokens": self.prompt,
            "input_tokens_details": {"cached_tokens": self.cached, "cache_write_tokens": 0},
            "output_tokens": self.completion,
            "output_tokens_details": {"reasoning_tokens": self.reasoning},
            "total_tokens": self.prompt + self.completion,
        }

    def as_fields(self) -> dict[str, object]:
        """For a log line."""
        return {"prompt_tokens": self.prompt, "completion_tokens": self.completion, "cached_tokens": self.cached}
