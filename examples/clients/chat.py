"""A streaming chat with the plain OpenAI client: `python examples/clients/chat.py "What is a tide?"`."""

import sys

import openai

QUESTION = sys.argv[1] if len(sys.argv) > 1 else "What causes the tides?"

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="unused")
stream = client.chat.completions.create(
    model="smollm2",
    messages=[{"role": "user", "content": QUESTION}],
    max_tokens=200,
    temperature=0,
    stream=True,
)
for chunk in stream:
    if chunk.choices and chunk.choices[0].delta.content:
        print(chunk.choices[0].delta.content, end="", flush=True)
print()
