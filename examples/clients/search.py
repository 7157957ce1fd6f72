"""The passages that fit a question best, by their embeddings: `python examples/clients/search.py "When is high tide?"`."""

import argparse
import sys

import numpy as np
import openai

PASSAGES = [
    "The moon pulls the oceans towards it, so the sea rises and falls twice a day.",
    "A tide gate lets water out at ebb and keeps it from coming back with the flood.",
    "An inference server loads models and answers requests for their predictions.",
    "Batching runs the requests of many clients through a model together.",
]


def main(url: str, question: str) -> None:
    client = openai.OpenAI(base_url=url, api_key="unused")
    answer = client.embeddings.create(model="emb", input=[question, *PASSAGES])
    asked, *passages = (np.array(entry.embedding) for entry in answer.data)
    scores = (float(asked @ vector) for vector in passages)
    for score, passage in sorted(zip(scores, PASSAGES, strict=True), reverse=True):
        print(f"{score:.2f}  {passage}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Rank a few passages by how well they fit a question.")
    parser.add_argument("question", nargs="?", default="What causes the tides?")
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the OpenAI API (default: %(default)s)")
    arguments = parser.parse_args()
    try:
        main(arguments.url, arguments.question)
    except openai.OpenAIError as error:
        sys.exit(f"{arguments.url}: {error}")
