"""``zpd bench link`` measures real processes; how fast they are is not asked here."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path

import pytest

from nodes.segments import ROOT
from tests.process.harness import zpd
from tools.bench_link_rounds import Round
from tools.bench_link_sides import Zpd
from zpd.config import load

RATIOS = {
    "roundtrip_ratio", "roundtrip_worker_ratio", "ops_ratio", "kv_tcp_ratio",
    "kv_tcp_checked_ratio", "kv_shm_ratio",
}  # fmt: skip


def test_one_object_with_every_ratio_and_what_it_is_made_of(home: Path) -> None:
    done = zpd("bench", "link", "--json", "--rounds", "2", "--share", "0.01")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    found = json.loads(done.stdout)
    assert found.keys() == RATIOS | {"rounds", "checksum", "figures"}
    assert (found["rounds"], found["checksum"]) == (2, "sum64")
    assert {f"{name}_ratio" for name in found["figures"]} == RATIOS
    for name, sizes in found["figures"].items():
        assert list(sizes) == (["1", "8"] if name.startswith("kv") else ["0"])
        for figures in sizes.values():
            assert figures.pop("unit") in ("s", "/s", "B/s")
            assert len(figures) == 2 and all(v > 0 and isfinite(v) for v in figures.values())
    assert all(found[r] > 0 and isfinite(found[r]) for r in RATIOS)


def test_kv_is_written_to_the_others_memory_and_none_of_it_stays(tmp_path: Path) -> None:
    with Zpd(tmp_path, "here", "off") as side:
        ours = f"zpd-*-{load(tmp_path / 'here.toml').fingerprint()}-*"
        assert len(list(ROOT.glob(ours))) == 1
        assert side.run(Round("shm", 4, 2, 1))["seconds"] > 0
    assert not list(ROOT.glob(ours))


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--rounds", "0"), "--rounds 0: must be from 1 to 1000"),
        (("--share", "0"), "--share 0.0: must be from 0.001 to 100"),
        (("--share", "nan"), "--share nan: must be from 0.001 to 100"),
    ],
    ids=lambda x: x[0],
)
def test_an_option_that_is_not_allowed_is_named(option: tuple[str, str], said: str) -> None:
    done = zpd("bench", "link", *option)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
