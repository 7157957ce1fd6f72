"""The passages that fit a question best, by their embeddings: `python examples/clients/search.py "When is high tide?"`."""

import sys

import numpy as np
import openai

PASSAGES = [
    "The moon pulls the oceans towards it, so the sea rises and falls twice a day.",
    "A tide gate lets water out at ebb and keeps it from coming back with the flood.",
    "An inference server loads models and answers requests for their predictions.",
    "Batching runs the requests of many clients through a model together.",
]
QUESTION = sys.argv[1] if len(sys.argv) > 1 else "What causes the tides?"

client = openai.OpenAI(base_url="http://localhost:8000/v1", api_key="unused")
answer = client.embeddings.create(model="emb", input=[QUESTION, *PASSAGES])
question, *passages = (np.array(entry.embedding) for entry in answer.data)
for score, passage in sorted(
    ((float(question @ vector), text) for vector, text in zip(passages, PASSAGES, strict=True)), reverse=True
):
    print(f"{score:.2f}  {passage}")
