"""docs/wire.md says what the code does: every message, field, blob count, cap and reason."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from zpd import blobs, ids, schema, wire
from zpd.messages import MESSAGES
from zpd.requests import Sampling

TEXT = (Path(__file__).parents[2] / "docs" / "wire.md").read_text(encoding="utf-8")
SECTIONS = {
    section.split("\n", 1)[0].strip(): section for section in re.split(r"(?m)^#{2,3} ", TEXT)[1:]
}


def rows(section: str) -> list[tuple[str, str]]:
    """First two cells of each table row that starts with a quoted name."""
    return [
        (name, said.strip().strip("`"))
        for name, said in re.findall(r"(?m)^\| `(\w+)` \| ([^|]*?) \|", SECTIONS[section])
    ]


@pytest.mark.parametrize("cls", MESSAGES, ids=lambda cls: cls.__name__)
def test_a_message_has_its_fields_types_and_blobs(cls: type) -> None:
    assert rows(cls.__name__) == [(f.name, f.type) for f in fields(cls)]
    least, most = blobs.BLOBS.get(cls, (0, 0))
    assert f"Blobs: {least} to {most}" in SECTIONS[cls.__name__]


def test_the_messages_stand_in_the_order_of_their_numbers() -> None:
    described = [name for name, section in SECTIONS.items() if "Blobs: " in section]
    assert described == [cls.__name__ for cls in MESSAGES]


def test_no_message_is_described_that_does_not_exist() -> None:
    described = {name for name, section in SECTIONS.items() if "Blobs: " in section}
    assert described == {cls.__name__ for cls in MESSAGES}


def test_the_envelope_has_its_fields() -> None:
    assert rows("Envelope") == [(f.name, f.type) for f in fields(wire.Envelope)]


def test_every_cap_has_its_value() -> None:
    caps = {
        name: str(value)
        for module in (wire, blobs, schema)
        for name, value in vars(module).items()
        if name.startswith("MAX_")
    }
    assert dict(rows("Caps")) == caps


def test_every_reason_is_there() -> None:
    assert tuple(name for name, _ in rows("Reasons")) == wire.REASONS


def test_version_dtypes_texts_and_keys_are_there() -> None:
    assert TEXT.startswith(f"# The wire of zpd, protocol {wire.PROTOCOL}\n")
    assert f"`{wire.MAGIC.decode()}`" in TEXT
    assert f"`dtype` is one of {', '.join(blobs.DTYPES)};" in SECTIONS["Blobs"]
    kinds = SECTIONS["Field types"]
    assert f"{', '.join(sorted(schema.CUT))}: at most" in kinds
    assert f"{', '.join(sorted(schema.LONG))}: bounded" in kinds
    for field in fields(Sampling):
        assert f"`{field.name}`" in kinds
    for key in (ids.Attempt, ids.Term, ids.Ring, ids.Use, ids.Block):
        assert f"| `{key.__name__}` |" in kinds
