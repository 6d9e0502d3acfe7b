"""The kernels for inputs and accepted drafts of a captured verification, compared with plain torch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from switchrail.engine import accept, verify_inputs
from switchrail_kernels.elementwise.verify_rows import accept_rows, verify_rows

PAGE, SLOTS = 4, 40
SIZES = [(1, 1, 5, 3), (1, 0, 1, 1), (5, 3, 4, 7), (33, 33, 2, 1100), (3, 2, 9, 6)]


def make_records(width, random, device):
    slots = torch.arange(SLOTS)
    kind = torch.randint(0, 3, (SLOTS,), generator=random)
    records = torch.where(kind == 0, -1, 2 * slots + kind - 1)
    rows = torch.rand(SLOTS, width, generator=random) < 0.5
    return records.to(device), rows.to(device)


def check(found, expected):
    for number, (a, b) in enumerate(zip(found, expected, strict=True)):
        assert torch.equal(a, b), number


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize(("count", "real", "width", "pages"), SIZES)
def test_inputs_as_the_engine_computes_them(count, real, width, pages, deferred, device):
    random = torch.Generator().manual_seed(count)
    page_table = torch.randint(1, 9999, (SLOTS, pages + 2), generator=random, dtype=torch.int32)
    page_table[0] = 0
    last_tokens = torch.randint(0, 500, (SLOTS,), generator=random)
    tasks = torch.zeros(3, count + 3, dtype=torch.int64)
    tasks[1] = -1
    owned = torch.randint(1, pages + 1, (real,), generator=random)
    tasks[0, :real] = (owned * PAGE - torch.randint(1, 4, (real,), generator=random)).clamp(min=0)
    tasks[0, :real] = tasks[0, :real].clamp(max=PAGE * pages - width).clamp(min=0)
    tasks[1, :real], tasks[2, :real] = torch.randperm(SLOTS - 1, generator=random)[:real] + 1, owned
    drafts = torch.randint(0, 99, (3, count + 3, width), generator=random)
    given = [one.to(device) for one in (tasks[:, :count], drafts[:2, :count], last_tokens, page_table)]
    records = make_records(width, random, device)

    def results(function):
        shapes = ((count * width,), (count * width,), (count, pages), (count * width,), (count,))
        wide = torch.int64
        dtypes = (wide, wide, torch.int32, wide, torch.int32, torch.int32, torch.int32)
        out = [
            torch.full(shape, -7, dtype=dtype, device=device)
            for shape, dtype in zip((*shapes, (count * width,), (1,)), dtypes, strict=True)
        ]
        pending = None
        if deferred:
            own = [torch.full((count,), -7, device=device) for _ in range(2)]
            taken = torch.zeros(count, width, dtype=torch.bool, device=device)
            pending = [one.clone() for one in records] + [own[0], taken, own[1]]
            pending[0][0] = -1  # no sequence has slot 0
        function(*given, page_size=PAGE, pending=pending, out=out)
        return [*out, *(pending or ())]

    expected = results(verify_inputs.verify_rows)
    check(results(verify_rows), expected)
    if deferred:
        slots = given[0][1]
        assert (expected[7][slots.clamp(min=0)] == -1).all(), "a record must be used only once"
        assert ((expected[11] >> 1) == slots).logical_or(slots < 0).all()
        assert (expected[11] != expected[9])[slots >= 0].all(), "a record must not be read while it is filled"


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize(("count", "real", "width", "pages"), SIZES)
def test_accepted_as_the_engine_computes_it(count, real, width, pages, trees, deferred, device):
    random = torch.Generator().manual_seed(count + width)
    rows = torch.randperm(count * width + 4, generator=random)[: count * width].view(count, width)
    ids = torch.randint(0, 2, (count * width + 6,), generator=random)
    chosen = torch.randint(0, 2, (count * width + 4,), generator=random)
    chosen[rows[:, -1]] = -1
    columns = torch.arange(width)
    parents = (columns - 1).expand(count, -1).clone()
    if trees:
        parents[:, 1:] = (torch.rand(count, width - 1, generator=random) * columns[1:]).long()
    shorter = torch.randint(0, width + 1, (count, 1), generator=random)
    parents[columns.expand(count, -1) > shorter] = -2
    slots = torch.full((count,), -1)
    slots[:real] = torch.randperm(SLOTS - 1, generator=random)[:real] + 1
    last_tokens = torch.randint(0, 500, (SLOTS,), generator=random)
    own = torch.where(slots < 0, -1, 2 * slots)
    given = [one.to(device) for one in (chosen, ids, rows, parents, slots)]
    records = make_records(width, random, device)

    def results(function):
        out = [torch.full(size, -7, device=device) for size in ((count,), (count, width), (count, width + 1))]
        pending = None
        if deferred:
            pending = [*(one.clone() for one in records), own.to(device)]
        tokens = last_tokens.to(device)
        function(*given, tokens, are_trees=trees, pending=pending, out=out)
        return [*out, tokens, *(pending or ())]

    expected = results(accept.accept_rows)
    check(results(accept_rows), expected)
    untouched = [slot for slot in range(SLOTS) if slot not in slots.tolist()]
    assert torch.equal(expected[3].cpu()[untouched], last_tokens[untouched])
    if width > 1 and count > 1:
        assert 0 < expected[0].float().mean() < width - 1, "some drafts must be accepted, and some rejected"
