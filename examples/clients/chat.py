"""A streaming chat with the plain OpenAI client: `python examples/clients/chat.py "What is a tide?"`; --help tells more."""

import argparse
import sys

import openai


def main(arguments: argparse.Namespace) -> None:
    client = openai.OpenAI(base_url=arguments.url, api_key=arguments.api_key)
    stream = client.chat.completions.create(
        model=arguments.model,
        messages=[{"role": "user", "content": arguments.question}],
        max_tokens=200,
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, end="", flush=True)
    print()


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Ask a model a question and print the answer as it comes.")
    parser.add_argument("question", nargs="?", default="What causes the tides?")
    parser.add_argument("--url", default="http://localhost:8000/v1", help="of the OpenAI API (default: %(default)s)")
    parser.add_argument("--model", default="smollm2", help="default: %(default)s")
    parser.add_argument("--api-key", default="unused", help="for a server that asks for one")
    return parser.parse_args()


if __name__ == "__main__":
    given = read_arguments()
    try:
        main(given)
    except openai.APIConnectionError:
        sys.exit(f"no server answers at {given.url}: start one, or give its address with --url")
    except openai.APIError as error:
        sys.exit(f"{given.url}: {error.message}")
