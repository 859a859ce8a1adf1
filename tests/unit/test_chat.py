"""Chat templates render as elsewhere, and cannot reach, change, outlast or outgrow anything."""

from __future__ import annotations

import datetime
import gc
import os
from collections.abc import Iterator

import psutil
import pytest

from nodes.chat import ChatTemplate, TemplateError

MESSAGES = [{"role": "user", "content": "<b>'hi'</b> 안녕"}]


def render(source: str, seconds: int = 20, **names: str) -> str:
    template = ChatTemplate(source, names, seconds)
    try:
        return template.render(MESSAGES)
    finally:
        template.close()


@pytest.fixture(autouse=True)
def _no_process_is_left() -> Iterator[None]:
    before = set(psutil.Process().children())
    yield
    gc.collect()
    assert set(psutil.Process().children()) <= before


def test_blocks_leave_no_blank_lines() -> None:
    source = "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n"
    source += "{% endfor %}\nend\n"
    assert render(source) == "<b>'hi'</b> 안녕\nend"


def test_what_templates_expect_to_find() -> None:
    assert render("{{ messages | tojson }}") == (
        """[{"role": "user", "content": "<b>'hi'</b> 안녕"}]"""
    )
    assert render("{{ {'b': 1, 'a': [1]} | tojson(indent=1) }}") == (
        '{\n "b": 1,\n "a": [\n  1\n ]\n}'
    )
    assert render("{{ bos_token }}{{ add_generation_prompt }}", bos_token="<s>") == "<s>True"
    assert render("{{ tools is none }}{{ documents is none }}") == "TrueTrue"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
                  ) == "01"  # fmt: skip
    assert render("{{ strftime_now('%Y') }}") in {
        str(datetime.datetime.now().year), str(datetime.datetime.now().year - 1)
    }  # fmt: skip
    assert render("{% set n = namespace(x=1) %}{% set n.x = 2 %}{{ n.x }}") == "2"


def test_what_it_raises_reaches_the_caller() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(TemplateError, match="TemplateSyntaxError"):
        render("{% for %}")
    with pytest.raises(TemplateError, match="UndefinedError"):
        render("{{ nothing.at.all }}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ strftime_now.__globals__['json'] }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ self._TemplateReference__context.environment }}",
    ],
)
def test_it_reaches_no_attribute_and_changes_no_value(source: str) -> None:
    with pytest.raises(TemplateError, match=r"SecurityError|UndefinedError"):
        render(source)


def test_what_it_may_not_see_is_as_if_it_were_not_there() -> None:
    assert render("{{ strftime_now.__globals__ }}{{ ''.__class__ }}") == ""


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ (messages | length + 2) ** 1000000000 % 7 }}",
        "{% set n = namespace(s='x') %}{% for i in range(60) %}{% set n.s = n.s * 2 %}{% endfor %}",
        "{{ 'x' * 2 ** 40 }}",
    ],
    ids=["loops", "one step that lasts", "grows", "one step that grows"],
)
def test_it_neither_hangs_nor_eats_the_memory(source: str) -> None:
    attack = "{% if messages[0].content == 'attack' %}" + source + "{% endif %}fine"
    template = ChatTemplate(attack, {}, seconds=1)
    assert template.render(MESSAGES) == "fine"
    with pytest.raises(TemplateError, match="more than 1 s or too much memory"):
        template.render([{"role": "user", "content": "attack"}])
    assert template.render(MESSAGES) == "fine"
    template.close()


def test_its_process_ends_with_it() -> None:
    template = ChatTemplate("{{ messages[0].role }}", {})
    assert template.render(MESSAGES) == "user"
    assert len(psutil.Process().children()) == 1
    del template
    gc.collect()
    assert psutil.Process().children() == []


def test_a_process_that_somebody_ended_is_replaced() -> None:
    template = ChatTemplate("{{ messages[0].role }}", {})
    assert template.render(MESSAGES) == "user"
    [process] = psutil.Process().children()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and its end not collected
    assert template.render(MESSAGES) == "user"
    template.close()


def test_long_messages_pass() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    long = "안녕 " * 300_000
    assert template.render([{"role": "user", "content": long}]) == long
    template.close()
