"""The dtype that an engine chooses."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from switchrail.engine.dtypes import choose_dtype
from switchrail.errors import UnknownDtypeError

CPU: Any = SimpleNamespace(device="cpu", kind="cpu", supported_dtypes=lambda: ("float32", "bfloat16"))


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_checkpoint_of_an_unknown_dtype_is_refused_on_a_cpu_too(key: str) -> None:
    """An unknown dtype in a checkpoint's config is refused, although a CPU would compute in float32
    anyway."""
    assert choose_dtype(None, {key: "float16"}, CPU) == "float32"
    with pytest.raises(UnknownDtypeError, match=f"{key} is 'bfloat61' in the checkpoint's config") as caught:
        choose_dtype(None, {key: "bfloat61"}, CPU)
    assert (caught.value.name, caught.value.nearest[0]) == ("bfloat61", "bfloat16")
