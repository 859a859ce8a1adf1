"""The numeric plan names what decides a node's bits, and engines keep to it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from nodes.engine.numerics import CBWR_VALUE, device_of, numeric_plan, use_threads
from tests.plans import plan
from zpd.errors import UserError

NODE = plan("toy", (0, 8)).decode


def test_the_plan_names_what_decides_the_bits() -> None:
    said = numeric_plan(NODE)
    assert said["cbwr"] == CBWR_VALUE
    assert said["torch"] == torch.__version__
    for key, value in {"dtype": "bfloat16", "threads": 2}.items():
        other = numeric_plan(replace(NODE, **{key: value}))
        assert {k for k in said if said[k] != other[k]} == {key}


@pytest.mark.parametrize("device", ["tpu", "cpu:x", "cuda:99", "meta"])
def test_an_unknown_device_is_refused_by_name(device: str) -> None:
    with pytest.raises(UserError, match=f"node d: device = {device}"):
        device_of(replace(NODE, device=device))


def test_each_engine_computes_with_its_own_threads() -> None:
    for n in (2, 1):
        use_threads(replace(NODE, threads=n))
        assert torch.get_num_threads() == n
