"""Attention over packed keys and values, in plain torch and in Triton."""

import os
from dataclasses import replace

import pytest
import torch
from switchrail.errors import ArgumentError
from switchrail.ops.batch import sequences
from switchrail.ops.ragged import RaggedBatch, ragged_attention
from switchrail.ops.softmax import merge
from switchrail.platforms.operations import RaggedAttention
from switchrail.testing.measure import BOUNDS, measure

SEQLENS, SEQLENS_K = (3, 0, 40, 1), (7, 5, 70, 0)


def functions():
    yield pytest.param(RaggedAttention.forward_cpu, "cpu", id="torch")
    if torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1":
        from switchrail_kernels.attention.ragged import ragged_attention as triton

        yield pytest.param(triton, "cuda" if torch.cuda.is_available() else "cpu", id="triton")


def arguments(
    seqlens, seqlens_k, *, device, dtype=torch.float32, heads=4, kv_heads=2, size=24, value_size=16
):
    generator = torch.Generator().manual_seed(0)

    def view(rows, count, width):  # of a larger buffer
        fused = torch.randn(rows, count, width + 5, generator=generator, dtype=torch.float64)
        return fused.to(device, dtype)[..., 3 : 3 + width]

    q = view(sum(seqlens), heads, size)
    k, v = view(sum(seqlens_k), kv_heads, size), view(sum(seqlens_k), kv_heads, value_size)
    starts, starts_k = (sequences(each, device)["cu_seqlens"] for each in (seqlens, seqlens_k))
    return (q, k, v), RaggedBatch(
        cu_seqlens=starts, cu_seqlens_k=starts_k, seqlens=seqlens, seqlens_k=seqlens_k
    )


def with_keys(batch, seqlens_k, device):
    """The batch with `seqlens_k` keys in its sequences."""
    return replace(batch, seqlens_k=seqlens_k, cu_seqlens_k=sequences(seqlens_k, device)["cu_seqlens"])


def naive(q, k, v, batch, *, scale, causal):
    out = torch.zeros(*q.shape[:2], v.shape[2], dtype=torch.float64)
    lse = torch.full(q.shape[:2], -torch.inf, dtype=torch.float64)
    q, k, v = (x.double().cpu() for x in (q, k, v))
    row = first = 0
    for length, keys in zip(batch.seqlens, batch.seqlens_k, strict=True):
        for i in range(length):
            for head in range(q.shape[1]):
                own = head // (q.shape[1] // k.shape[1])
                seen = slice(first, first + (keys - length + i + 1 if causal else keys))
                logits = scale * (k[seen, own] @ q[row + i, head])
                if len(logits):
                    out[row + i, head] = torch.softmax(logits, 0) @ v[seen, own]
                    lse[row + i, head] = torch.logsumexp(logits, 0)
        row, first = row + length, first + keys
    return out, lse


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("function", "device"), [*functions()])
def test_each_row_attends_to_the_keys_of_its_sequence(function, device, causal):
    tensors, batch = arguments(SEQLENS, SEQLENS_K, device=device)
    if causal:
        batch = with_keys(batch, (7, 5, 69, 1), device)
    out, lse = function(*tensors, batch, scale=-0.3, causal=causal)
    expected, total = naive(*tensors, batch, scale=-0.3, causal=causal)
    assert measure(out.cpu(), expected).within(BOUNDS[torch.float32])
    assert torch.equal(lse.cpu().isinf(), total.isinf())
    assert torch.allclose(lse.cpu().double(), total, atol=1e-5)


@pytest.mark.parametrize(("function", "device"), [*functions()])
def test_parts_of_the_keys_merge_to_the_whole(function, device):
    (q, k, v), batch = arguments((4, 2), (20, 20), device=device)
    whole = function(q, k, v, batch, scale=-0.3, causal=False)
    halves = []
    for part in (slice(0, 12), slice(12, 20)):
        cut = [torch.cat([x[:20][part], x[20:][part]]) for x in (k, v)]
        own = with_keys(batch, (part.stop - part.start,) * 2, device)
        halves += function(q, *cut, own, scale=-0.3, causal=False)
    out, lse = merge(*halves)
    assert torch.allclose(out, whole[0], atol=1e-5)
    assert torch.allclose(lse, whole[1], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"seqlens": (3, 0, 40, 2)},
            r"q: got shape \[44, 4, 24\], expected \[sum\(seqlens\), H, D\] = \[45, 4, 24\]",
        ),
        ({"seqlens_k": (7, 5, 70)}, "seqlens_k: got 3 sequences, expected 4"),
        ({"seqlens_k": (7, 5, 70, 1)}, "k: got shape"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(change, message):
    tensors, batch = arguments(SEQLENS, SEQLENS_K, device="cpu")
    with pytest.raises(ArgumentError, match=message):
        ragged_attention(*tensors, replace(batch, **change), scale=-0.3, causal=False)


def innermost(x):
    """The same values, with the first axis contiguous in memory."""
    return x.movedim(0, -1).contiguous().movedim(-1, 0)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        *((name, innermost, "got stride along the last axis") for name in "qkv"),
        ("k", lambda x: x.double(), "got dtype torch.float64, expected torch.float32"),
        ("v", lambda x: x.to("meta"), "got device meta"),
        ("q", lambda x: x[0], "got number of axes 2, expected 3"),
        ("cu_seqlens", lambda x: x.long(), "got dtype torch.int64, expected torch.int32"),
        ("cu_seqlens_k", lambda x: x.repeat_interleave(2)[::2], "got stride along the last axis 2"),
        ("cu_seqlens_k", lambda x: x[:-1], r"got shape \[4\], expected \[5\]"),
    ],
)
@pytest.mark.parametrize(("function", "device"), [*functions()])
def test_tensors_of_other_forms_are_refused(function, device, name, change, message):
    tensors, batch = arguments(SEQLENS, SEQLENS_K, device=device)
    given = dict(zip("qkv", tensors, strict=True))
    if name in given:
        given[name] = change(given[name])
    else:
        batch = replace(batch, **{name: change(getattr(batch, name))})
    with pytest.raises(ArgumentError, match=f"{name}: {message}"):
        function(**given, batch=batch, scale=-0.3, causal=False)
