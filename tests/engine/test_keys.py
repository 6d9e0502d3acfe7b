"""Tests of `Keys`, the sizes of steps for which graphs are captured."""

from __future__ import annotations

from functools import partial

import pytest
import switchrail
from switchrail.engine.capture import plan_capture
from switchrail.engine.keys import Keys
from switchrail.engine.options import EngineOptions
from switchrail.engine.routes import plan_routes
from switchrail.platforms import described

OPTIONS = EngineOptions(max_sequences=4, max_tokens_per_step=64)


def test_without_caches_a_decode_is_the_same_for_all_lengths() -> None:
    several = Keys.of(OPTIONS, 2**20, mixed=False)
    one = Keys.of(OPTIONS, 2**20, mixed=False, caches=False)
    assert one.tokens == (2**20,)
    assert len(several.tokens) > 1
    assert several.sequences == one.sequences
    assert one.decode(3, 5) in list(one)


@pytest.mark.parametrize(("model_type", "classes"), [("mamba2", 1), ("llama", 6)])
def test_a_model_of_states_alone_has_one_class_of_lengths(model_type: str, classes: int) -> None:
    platform = described("cuda:9.0")
    runtime = switchrail.Runtime()
    for op in ("attention", "mamba2", "short_conv"):
        runtime.register(
            "graphed", "nowhere:Backend", op=op, devices=("cuda",), features=("cuda_graph",), priority=9
        )
    layout = switchrail.Layout.from_config({"model_type": model_type, "num_hidden_layers": 1})
    make = partial(plan_routes, runtime, layout, platform=platform, dtype="bfloat16", page_size=64)
    capture = plan_capture(
        make,
        make(preferences=None),
        platform=platform,
        options=OPTIONS,
        max_length=2**20,
        preferences=None,
    )
    assert not isinstance(capture, str), capture
    assert len(capture.keys.tokens) == classes
