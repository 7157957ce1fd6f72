"""The OpenAI wire: requests, prompts, chunks, errors."""
