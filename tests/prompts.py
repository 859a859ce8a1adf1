"""The fixed prompts that answers are held against ``transformers`` with. Never changed to fit."""

from __future__ import annotations

_FABLE = (
    "Once upon a time, in a valley between two mountains, there lived a clockmaker who had never "
    "seen the sea. Every evening she wound the great clock in the square, counted its seventy-two "
    "teeth, and wrote the number of the day into a small green book. "
)

RAW: dict[str, str] = {
    "one token": "The",
    "capital": "The capital of France is",
    "count": "one two three four five six seven eight nine ten eleven",
    "digits": "3.14159265358979323846264338327950288419716939937510",
    "spaces": "a\n\n\n    b\t\tc   \n",
    "python": "def fibonacci(n: int) -> int:\n    if n < 2:\n        return n\n    return",
    "c": "#include <stdio.h>\n\nint main(void) {\n    for (int i = 0; i < 10; ++i) {\n",
    "json": '{"name": "Ada", "born": 1815, "fields": ["mathematics", "computing"], "friends": [',
    "html": "<html>\n<head><title>A page</title></head>\n<body>\n<ul>\n  <li>first</li>\n",
    "german": "Der Frosch und die Störche: Es war einmal ein Frosch, der wollte fliegen, und",
    "french": "Maître Corbeau, sur un arbre perché, tenait en son bec un fromage.",
    "spanish": "En un lugar de la Mancha, de cuyo nombre no quiero acordarme, no ha mucho tiempo",
    "russian": "Все счастливые семьи похожи друг на друга,",
    "chinese": "学而时习之，不亦说乎？有朋自远方来，",
    "japanese": "吾輩は猫である。名前はまだ無い。",
    "arabic": "في البدء كان",
    "emoji": "Weather today: ☀️ 🌧️ ❄️ and tomorrow:",
    "fable, 200 tokens": _FABLE * 4,
    "fable, 1500 tokens": _FABLE * 28,
}

CHAT: dict[str, str] = {
    "sky": "Explain in three sentences why the sky is blue.",
    "list": "List five animals that live in the sea.",
    "sum": "What is 17 + 25? Think step by step.",
    "haiku": "Write a haiku about an old clock.",
    "translate": "Translate to French: The cat sleeps on the red chair.",
    "fix": "What is wrong with this code?\n\nfor i in range(10)\n    print(i)\n",
}
