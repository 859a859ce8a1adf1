"""Room 1. Messages -> the prompt text that a model's chat template makes of them.

A chat template is a program that came with the model. It runs in jinja2's sandbox, which keeps it
from attributes and from changing values, and in a process of its own, which keeps its loops and
its memory from us: the kernel ends that process when a rendering takes too long. Run as a script,
this file is that process. Rendering follows Hugging Face's rules.
"""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

_SECONDS = 5  # for one rendering; a real one takes milliseconds
_MEMORY = 2 * 2**30  # bytes of address space


class TemplateError(Exception):
    """The template cannot make a prompt of these messages. ``str()`` says why."""


class ChatTemplate:
    """One template and the process that renders it, started with the first rendering.

    ``names``: what else the template may use, e.g. ``bos_token``. Thread-safe.
    """

    def __init__(self, source: str, names: Mapping[str, str], seconds: int = _SECONDS) -> None:
        self.source = source
        self._setup = json.dumps([source, dict(names), seconds])
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        self._end: weakref.finalize[..., Any] | None = None

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """The prompt, open for the assistant's answer. TemplateError where there is none."""
        with self._lock:
            if self._process is not None and self._process.poll() is not None:
                self.close()  # somebody ended it while it was idle
            try:
                process = self._process or self._start()
                answer = _ask(process, json.dumps([list(messages), list(tools) or None]))
            except (BrokenPipeError, EOFError):
                self.close()
                raise TemplateError(
                    f"the chat template took more than {self._seconds} s or too much memory"
                ) from None
        kind, text = json.loads(answer)
        if kind != "text":
            raise TemplateError(text)
        return str(text)

    def close(self) -> None:
        """End the process. A later rendering starts a new one."""
        if self._end is not None:
            self._end()
        self._process = None

    def _start(self) -> subprocess.Popen[str]:
        # -P: this file's folder must not come before the standard library.
        process = subprocess.Popen(
            [sys.executable, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="ascii",
            start_new_session=True,  # Ctrl-C is for the node; this process ends with it
        )
        self._process, self._end = process, weakref.finalize(self, _stop, process)
        assert process.stdin is not None
        process.stdin.write(self._setup + "\n")
        return process


def _ask(process: subprocess.Popen[str], line: str) -> str:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer.endswith("\n"):
        raise EOFError
    return answer


def _stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        try:
            if pipe is not None:
                pipe.close()
        except BrokenPipeError:
            continue  # what it had not read yet


def _serve() -> None:
    """One JSON line in ([messages, tools]), one out (["text", prompt] or ["error", why])."""
    source, names, seconds = json.loads(sys.stdin.readline())
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    most = _MEMORY if hard == resource.RLIM_INFINITY else min(_MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    template: Any = None
    for line in sys.stdin:
        signal.alarm(seconds)  # the kernel ends this process, whatever it is at
        try:
            template = template or _compile(source)
            messages, tools = json.loads(line)
            text = template.render(
                messages=messages,
                add_generation_prompt=True,
                tools=tools,
                documents=None,
                **names,
            )
            answer = ["text", text]
        except MemoryError:
            raise
        except Exception as e:
            answer = ["error", f"the chat template failed: {type(e).__name__}: {e}"]
        print(json.dumps(answer), flush=True)
        signal.alarm(0)


def _compile(source: str) -> Any:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(why: str) -> None:
        raise jinja2.TemplateError(why)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        # jinja2's own filter escapes what is special in HTML
        return json.dumps(
            value,
            ensure_ascii=ensure_ascii,
            indent=indent,
            separators=separators,
            sort_keys=sort_keys,
        )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(source)


if __name__ == "__main__":
    _serve()
