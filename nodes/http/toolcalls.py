"""Room 8. Calls of tools in an answer's text, in the two forms that the models here write them.

*tagged*: ``<tool_call>{"name": …, "arguments": {…}}</tool_call>``, any number of them (Qwen, and
others by the same template). *object*: the whole answer is ``{"name": …, "parameters": {…}}``
(Llama 3). Which one, the chat template says: it tells the model how.
"""

from __future__ import annotations

import json
import re
from typing import Any

TAGGED, OBJECT = "tagged", "object"
OPEN, CLOSE = "<tool_call>", "</tool_call>"


def form_of(template: str) -> str:
    """The form in which a model with this chat template calls; "" where it knows no tools, or
    writes calls in a way that zpd cannot read."""
    if not re.search(r"\btools\b", template):
        return ""
    if OPEN in template:
        return TAGGED
    return OBJECT if '"parameters"' in template and '"name"' in template else ""


class ToolText:
    """One answer: what may be shown at once, and at the end what was called."""

    def __init__(self, form: str) -> None:
        self._form = form
        self._held = ""
        self._plain = False  # object: the answer has begun, and not as a call

    def push(self, text: str) -> str:
        """What of the answer's next piece is no part of a call."""
        self._held += text
        if self._form == OBJECT:
            said = self._held.lstrip()
            self._plain = self._plain or (bool(said) and not said.startswith("{"))
            return self._give(len(self._held)) if self._plain else ""
        at = self._held.find(OPEN)
        if at >= 0:
            return self._give(at)
        for n in range(min(len(OPEN) - 1, len(self._held)), 0, -1):
            if OPEN.startswith(self._held[-n:]):
                return self._give(len(self._held) - n)
        return self._give(len(self._held))

    def _give(self, size: int) -> str:
        shown, self._held = self._held[:size], self._held[size:]
        return shown

    def finish(self) -> tuple[str, list[dict[str, str]]]:
        """(the rest of the text, calls: name and arguments as JSON). What looked like a call and
        is none is text."""
        said, self._held = self._held, ""
        if self._form == OBJECT:
            call = _call(said)
            return ("", [call]) if call else (said, [])
        pieces = re.findall(f"{OPEN}(.*?)(?:{CLOSE}|$)", said, re.DOTALL)
        calls = [_call(piece) for piece in pieces]
        found = [c for c in calls if c is not None]
        return ("", found) if found and len(found) == len(calls) else (said, [])


def _call(text: str) -> dict[str, str] | None:
    try:
        value: Any = json.loads(text)
        if not isinstance(value, dict) or not isinstance(value.get("name"), str):
            return None
        arguments = value.get("arguments", value.get("parameters", {}))
        said = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        (value["name"] + said).encode()  # half of a surrogate pair is no text
    except (ValueError, RecursionError):
        return None
    return {"name": value["name"], "arguments": said} if isinstance(arguments, dict) else None
