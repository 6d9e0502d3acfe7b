"""`Sequences` through its own interface. It stays consistent after an exception at any place."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from switchrail import pools
from switchrail.engine import sequences
from switchrail.engine.sequence import Sequence
from switchrail.engine.sequences import Sequences
from switchrail.errors import RequestError
from switchrail.pools import FreeList

from .places import Place, Visiting, name, recorded

PAGES, SLOTS, PAGE = 12, 4, 4
FILES = [Path(sequences.__file__), Path(pools.__file__).parent / "free.py"]


def make() -> Sequences[Sequence]:
    return Sequences(
        FreeList(PAGES + 1), FreeList(SLOTS + 1), page_size=PAGE, max_pages=PAGES, device=torch.device("cpu")
    )


def check(owner: Sequences[Sequence]) -> None:
    """Check that every page and slot is free, or is held as the live sequences imply."""
    owner.repair()
    held = Counter(page for sequence in owner.live for page in sequence.pages)
    assert sorted([*held, *owner._pages._free]) == list(range(1, PAGES + 1))
    assert {page: n for page, n in enumerate(owner._holders) if n} == held
    slots = [sequence.slot for sequence in owner.live]
    assert sorted([*slots, *owner._slots._free]) == list(range(1, SLOTS + 1))
    for sequence in owner.live:
        assert owner.page_table[sequence.slot, : len(sequence.pages)].tolist() == sequence.pages


def test_a_sequence_has_its_memory_from_admission_to_release() -> None:
    owner, sequence = make(), Sequence()
    owner.admit(sequence, 3)
    assert (sequence.slot > 0, len(set(sequence.pages)), sequence.length) == (True, 3, 0)
    owner.advance([(sequence, 5)])
    assert sequence.length == 5
    owner.rollback(sequence, 2)
    assert sequence.length == 3
    check(owner)
    owner.release(sequence)
    owner.release(sequence)
    assert (sequence.slot, sequence.pages, owner.live) == (0, [], {})
    check(owner)


def test_sequences_that_do_not_fit() -> None:
    owner = make()
    assert owner.fits(PAGES)
    assert not owner.fits(PAGES + 1)
    for _ in range(SLOTS):
        assert owner.fits(1)
        owner.admit(Sequence(), 1)
    assert not owner.fits(0)


def test_a_fork_shares_full_pages_and_copies_the_last() -> None:
    owner = make()
    source, target = Sequence(), Sequence()
    owner.admit(source, 3)
    owner.advance([(source, 2 * PAGE + 1)])
    owner.last_tokens[source.slot] = 7
    owner.admit(target, 1, source.pages[:2])
    assert owner.fork(source, target) == [(source.pages[2], target.pages[2])]
    assert target.pages[:2] == source.pages[:2]
    assert (target.length, owner.last_tokens[target.slot]) == (source.length, 7)
    assert target.slot != source.slot
    check(owner)
    owner.release(source)
    assert owner.page_table[target.slot, :3].tolist() == target.pages
    check(owner)
    owner.release(target)
    check(owner)


@pytest.mark.parametrize("shared", [0, 1, 2])
def test_a_fork_copies_what_is_not_shared(shared: int) -> None:
    owner = make()
    source, target = Sequence(), Sequence()
    owner.admit(source, 3)
    owner.advance([(source, 2 * PAGE)])  # fills two pages; the third has no token, so it isn't copied
    owner.admit(target, 3 - shared, source.pages[:shared])
    copies = owner.fork(source, target)
    assert copies == list(zip(source.pages[shared:2], target.pages[shared:2], strict=True))


def test_a_rollback_stays_out_of_shared_pages() -> None:
    owner = make()
    source, target = Sequence(), Sequence()
    owner.admit(source, 2)
    owner.advance([(source, PAGE + 2)])
    owner.admit(target, 1, source.pages[:1])
    owner.fork(source, target)
    owner.rollback(target, 2)
    with pytest.raises(RequestError, match="the page of token 3 is shared"):
        owner.rollback(source, 3)
    owner.release(target)
    owner.rollback(source, 3)
    with pytest.raises(RequestError, match="can't roll back 4 tokens; valid: 0 to 3"):
        owner.rollback(source, 4)
    with pytest.raises(RequestError, match="can't roll back -1"):
        owner.rollback(source, -1)
    owner.rollback(source, 0)


@given(st.integers(0, 10**6), st.integers(1, 40))
def test_pages_and_slots_always_add_up(seed: int, actions: int) -> None:
    owner, draw = make(), random.Random(seed)
    for _ in range(actions):
        live = list(owner.live)
        if live and draw.random() < 0.4:
            owner.release(draw.choice(live))
        else:
            pages = draw.randint(0, 4)
            shared = draw.choice(live).pages[: draw.randint(0, 2)] if live and draw.random() < 0.5 else []
            if owner.fits(pages):
                owner.admit(Sequence(), pages, shared)
        check(owner)


def test_an_exception_anywhere_loses_nothing() -> None:
    """An exception at any place loses nothing, even if a second one interrupts the repair."""

    def run(owner: Sequences[Sequence]) -> None:
        first, second = Sequence(), Sequence()
        owner.admit(first, 3)
        owner.advance([(first, 5)])
        owner.admit(second, 2, first.pages[:1])
        owner.fork(first, second)
        owner.release(first)
        owner.release(second)

    def broken(place: Place, owner: Sequences[Sequence]) -> None:
        def action() -> None:
            raise KeyboardInterrupt

        with Visiting(place, action), pytest.raises(KeyboardInterrupt):
            run(owner)

    whole = make()
    for _ in range(2):
        places = recorded(FILES, lambda: run(whole))
    assert len(places) > 25
    for place in places:
        owner = make()
        broken(place, owner)
        repairs = recorded(FILES, owner.repair)
        for again in repairs:
            owner = make()
            broken(place, owner)

            def action() -> None:
                raise KeyboardInterrupt

            with Visiting(again, action), pytest.raises(KeyboardInterrupt):
                owner.repair()
            check(owner)
        check(owner)
        for sequence in list(owner.live):
            owner.release(sequence)
        assert owner.fits(PAGES), name(place)
