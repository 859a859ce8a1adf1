"""``zpd bench link`` measures real processes; how fast they are is not asked here."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nodes.segments import ROOT, Files
from tests.process.harness import zpd
from tools.bench_link_actors import Far
from tools.bench_link_load import END, FAR, NEAR, USE, Bulk
from tools.bench_link_rounds import Round
from tools.bench_link_sides import Zpd, _topology
from zpd.config import load
from zpd.errors import ZpdBug
from zpd.messages import Note

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


@pytest.mark.parametrize("written", ["all", "one byte less", "nothing"])
def test_kv_that_was_only_said_to_be_there_gives_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str
) -> None:
    monkeypatch.setattr("tools.bench_link_actors.Files", lambda topology: Files(topology, tmp_path))
    (tmp_path / "x.toml").write_text(_topology("x", "off"), encoding="utf-8")
    topology = load(tmp_path / "x.toml")
    sent: list[Any] = []
    context: Any = SimpleNamespace(
        incarnation=USE.owner,
        send=lambda peer, message, bulk: sent.append(message),
        event=lambda *name, **fields: None,
    )
    bulk = Bulk(1)
    far = Far(context, topology, topology.node(FAR))
    far.on_message(NEAR, Note("round", {"kind": "shm", "mib": "1"}), ())
    k, v = bulk.blobs()
    if written != "nothing":
        far.shared.land(0, 0, 0, k, v)
    if written == "one byte less":
        far.shared.kv[0].view("u1")[7, 1, 3, bulk.tokens - 1, -1] ^= 1
    far.on_message(NEAR, bulk.message(0), ())
    assert sent == []
    if written == "all":
        far.on_message(NEAR, END, ())
        assert sent == [END, Note("compared")]
        assert not far.shared.kv[0].any()  # or the next round would prove nothing
    else:
        with pytest.raises(ZpdBug, match="is not what was sent"):
            far.on_message(NEAR, END, ())
        assert sent == [END]


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
