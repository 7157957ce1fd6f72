"""The text and the prompts that answers are compared on, as tokens of the model they are for."""

from pathlib import Path

from backends.text.tokenizer import Tokenizer

TEXT = Path(__file__).with_name("quality_text.txt")
LONG = 1500  # tokens

_CHAT = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
_QUESTIONS = (
    "What is the capital of France?",
    "Name three metals.",
    "Write a haiku about the sea.",
    "How many legs has a spider?",
    "Why is the sky blue?",
    "Give me a recipe for pancakes.",
    "Translate 'good morning' into Spanish.",
    "What is seven times eight?",
    "Who wrote Hamlet?",
    "Explain gravity to a child.",
)
_RAW = (
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "1, 2, 3, 4, 5,",
    "import numpy as np\n\n",
    "A",
    "The quick brown fox jumps over",
    "Here is the English alphabet: A B C D E F",
    '{"name": "Ada", "born": 1815, "known for":',
    "SELECT name, age FROM people WHERE",
    "In the year 1969,",
)
_UNICODE = (
    "Grüße aus München! 🙂 日本語のテキスト",
    "Привет мир Привет мир Привет мир",
    "🌶️🐈🌶️🐈🌶️🐈🌶️🐈🌶️",
    "naïve café, jalapeño, Ærø, Łódź",
    "数学は美しい。",
    "مرحبا بالعالم",
    "Ελληνικά και Latin mixed",
    "price: 5 € ≈ 5.40 $ ± 3 %",
    "한국어 문장입니다.",
    "\t tabs\tand\n\n\nlines   and   spaces ",
)
_SHARED = "You are a patient librarian. Answer in one sentence, name your source, and never guess. "
_ASKED = ("ferry", "bees", "drought", "well", "notebook", "cistern", "brandy", "funeral", "telephone", "suitcase")


def text_tokens(tokenizer: Tokenizer) -> list[int]:
    return tokenizer.encode(TEXT.read_text())


def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Fifty: short chats and texts, scripts of the world, shared beginnings of two lengths, and LONG ones."""
    text = TEXT.read_text()
    shared = [f"{_SHARED * 6}What was said about the {word}?" for word in _ASKED[:5]]
    shared += [f"{text[:2000]}\n\nWhat was said about the {word}?" for word in _ASKED[5:]]
    short = [_CHAT.format(question) for question in _QUESTIONS]
    encoded = [tokenizer.encode(each) for each in (*short, *_RAW, *_UNICODE, *shared)]
    return encoded + _long(tokenizer, text)


def _long(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """Five of LONG tokens, of which two pairs share most, and five of a fifth of it from other places."""
    whole = tokenizer.encode(text * 2)
    starts = (0, 0, 400, 400, 800)
    ends = ("Therefore", "In short,", "Therefore", "The bees", "My grandfather")
    tails = [tokenizer.encode(f" {end}") for end in ends]
    long = [whole[at : at + LONG - len(tail)] + tail for at, tail in zip(starts, tails, strict=True)]
    return long + [whole[at : at + LONG // 5] for at in range(100, 1100, 200)]
