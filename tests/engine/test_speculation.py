"""Sampled tokens after verification have the model's distribution, whatever was proposed."""

from __future__ import annotations

import gc
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import pytest
import switchrail
import torch
from switchrail.engine import SamplingParams, draft_model, sampling, speculation
from switchrail.engine.draft_model import DraftModel, DraftTrees
from switchrail.engine.drafts import NONE, Drafted
from switchrail.engine.models.mtp import QwenHead
from switchrail.engine.mtp import MtpDrafts, MtpTrees
from switchrail.engine.sampling import choose
from switchrail.engine.speculation import choose_rows, follow
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from .conftest import CONFIG
from .heads import FULL, Scratch, randomize

VOCABULARY, DRAWS, CHUNK = 16, 100_000, 10_000
ABSENT = -2
Proposal = Callable[[torch.Tensor], torch.Tensor]
"""Takes the model's probabilities [..., 16] and returns those of the proposal."""

PROPOSALS: dict[str, Proposal] = {
    "equal": lambda p: p,
    "near": lambda p: (p + 0.02) / (p + 0.02).sum(-1, keepdim=True),
    "bad": lambda p: (1.1 - p) / (1.1 - p).sum(-1, keepdim=True),
    "elsewhere": lambda p: torch.nn.functional.one_hot(p.argmin(-1), VOCABULARY).double(),
}


@pytest.fixture(autouse=True)
def small_digits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the filters search for cut-offs by digits of 4 bits, which is faster for a small vocabulary."""
    monkeypatch.setattr(sampling, "_BITS", 4)


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    """Turn off the garbage collector, which would visit the many small tensors repeatedly."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(autouse=True)
def weighed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute the weights of equal rows once."""

    def weigh(logits: torch.Tensor, params: Any) -> torch.Tensor:
        if params.count(params[0]) < len(params):
            return weigh_all(logits, params)
        keys = (logits.view(torch.int64) * odd).sum(-1)  # faster to sort than rows
        values, places = keys.unique(return_inverse=True)
        first = torch.empty_like(values).scatter_(0, places, torch.arange(len(keys)))
        return weigh_all(logits[first], params[: len(first)])[places]

    odd = torch.randint(2**62, (VOCABULARY // 2,), generator=torch.Generator().manual_seed(0)) * 2 + 1

    weigh_all = sampling.weigh
    monkeypatch.setattr(sampling, "weigh", weigh)


class Tape:
    """Random numbers of one sequence; cheaper to make and to rewind than a `Random`."""

    def __init__(self, numbers: list[float]) -> None:
        self.numbers = numbers
        self.place = 0

    def random(self) -> float:
        self.place += 1
        return self.numbers[self.place - 1]

    def getstate(self) -> int:
        return self.place

    def setstate(self, place: int) -> None:
        self.place = place


def verify(
    logits: torch.Tensor, drafted: Drafted, params: Any, draws: Any, choose: Any = choose
) -> torch.Tensor:
    """The new tokens, [sequences, most rows of a sequence]: accepted drafts, the model's token, ABSENT."""
    widths = [1 + len(tokens) for tokens in drafted.tokens]
    states = [one.getstate() for one in draws] if drafted.probabilities is None else []
    chosen = choose_rows(logits, widths, drafted, params, draws, choose)
    table, tokens, parents = table_of(chosen, widths, drafted)
    last, count, path, accepted = follow(table, tokens, parents)
    assert accepted.gather(1, last.unsqueeze(1)).all()
    assert torch.equal(accepted.sum(1, keepdim=True), 1 + count)
    if drafted.parents is None:
        found = follow(table, tokens, parents, are_trees=False)
        assert all(map(torch.equal, found, (last, count, path, accepted)))
    assert torch.equal(last, path.gather(1, count).squeeze(1))
    if drafted.probabilities is None:
        for one, state, accepted_drafts in zip(draws, states, count.flatten().tolist(), strict=True):
            one.setstate(state)
            for _ in range(1 + accepted_drafts):
                one.random()
    return table.gather(1, path).masked_fill(torch.arange(path.shape[1]) > count, ABSENT)


def draws_of(count: int, seed: int, *, rewinds: bool = False) -> list[Any]:
    """The sources of random numbers of sequences; they share one, which is fast, unless they rewind it."""
    if not rewinds:
        return [random.Random(seed)] * count
    return [Tape(numbers) for numbers in torch.rand(count, 16, dtype=torch.float64).tolist()]


def table_of(
    chosen: torch.Tensor, widths: list[int], drafted: Drafted
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The chosen tokens, the drafted tokens and the parents: [sequences, most rows of a sequence] each."""
    count, most = len(widths), max(widths)
    rows, tokens, parents = torch.zeros(3, count, most, dtype=torch.int64)
    parents.fill_(NONE)
    alike = drafted.parents is None or all(own == drafted.parents[0] for own in drafted.parents)
    if min(widths) == most and alike:
        tokens[:, 1:] = torch.tensor(drafted.tokens)
        parents[:, 1:] = torch.tensor([*drafted.parent_rows(0)])
        return chosen.view(count, most), tokens, parents
    is_row = torch.arange(most) < torch.tensor(widths).unsqueeze(1)
    rows[is_row] = torch.arange(len(chosen))
    is_row[:, 0] = False
    tokens[is_row] = torch.tensor([token for own in drafted.tokens for token in own])
    parents[is_row] = torch.tensor([one for n in range(count) for one in drafted.parent_rows(n)])
    return chosen[rows], tokens, parents


def exact(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    """The probabilities of one row, with filters as the documentation describes them."""
    kept = (logits.double() / params.temperature).softmax(-1).tolist()
    order = sorted(range(len(kept)), key=lambda token: (-kept[token], token))
    if params.top_k is not None:
        for token in order[params.top_k :]:
            kept[token] = 0.0
    total, before, enough = sum(kept), 0.0, params.top_p
    for token in order:
        if params.top_p < 1 and before / total >= enough:
            kept[token] = 0.0
        else:
            before += kept[token]
    most = max(kept)
    kept = [value if value >= params.min_p * most else 0.0 for value in kept]
    return torch.tensor(kept, dtype=torch.float64) / sum(kept)


def drawn(odds: torch.Tensor) -> torch.Tensor:
    """A token [count] from each distribution [count, 16]; faster than `multinomial`."""
    return torch.searchsorted(odds.cumsum(-1), torch.rand(len(odds), 1).double(), right=True)[:, 0]


def sequences(
    params: SamplingParams,
    proposal: Proposal | None,
    count: int,
    seed: int,
    logits: torch.Tensor,
    tree: bool = False,
) -> torch.Tensor:
    """The first two new tokens [count, 2] of sequences with two drafted tokens or a tree of two branches.

    Args:
        params: The sampling parameters.
        proposal: The proposal; None for a fixed one that is not sampled.
        count: The number of sequences.
        seed: The seed of all random numbers.
        logits: [17, 16], those of the first token, then those after each first token.
        tree: Whether drafts are trees.
    """
    torch.manual_seed(seed)
    draws = draws_of(count, seed, rewinds=proposal is None)
    p = torch.stack([exact(row, params) for row in logits])
    if proposal is None:
        first = p[0].topk(4).indices[torch.arange(count) % 4]
        own, probabilities = [first, first.flip(0)], None
        if tree:
            other = p[0].topk(5).indices[torch.arange(count) % 4 + 1]
            own = [first, other, first.flip(0), other.flip(0)]
    else:
        q = proposal(p)
        first = drawn(q[:1].expand(count, -1))
        second = drawn(q[1 + first])
        own, odds = [first, second], [q[:1].expand(count, -1), q[1 + first]]
        if tree:
            without = odds[0].scatter(1, first.unsqueeze(1), 0)  # siblings are drawn without replacement
            without = without.where(without.sum(-1, keepdim=True) > 0, 1 - q[:1].ceil())
            without = without / without.sum(-1, keepdim=True)
            other = drawn(without)
            third = drawn(q[1 + other])
            own, odds = [first, other, second, third], [odds[0], without, odds[1], q[1 + other]]
        probabilities = torch.stack(odds, 1).flatten(0, 1)
    rows = torch.stack([logits[:1].expand(count, -1), *(logits[1 + each] for each in own)], 1)
    drafts = torch.stack(own, 1).tolist()
    drafted = Drafted(drafts, probabilities, [(-1, -1, 0, 1)] * count if tree else None)
    tokens = verify(rows.flatten(0, 1), drafted, [params] * count, draws, choose)[:, :2]
    short = (tokens[:, 1] < 0).nonzero()[:, 0]
    if len(short):  # the next step gives them their second token
        before = tokens[short, 0]
        if proposal is None:
            again, probabilities = before, None
        else:
            again = drawn(q[1 + before])
            probabilities = q[1 + before]
        rows = torch.stack([logits[1 + before], logits[1 + again]], 1).flatten(0, 1)
        drafted = Drafted([[token] for token in again.tolist()], probabilities)
        left = [draws[i] for i in short.tolist()]
        tokens[short, 1] = verify(rows, drafted, [params] * len(left), left, choose)[:, 0]
    return tokens


def improbability(params: SamplingParams, proposal: Proposal | None, count: int, tree: bool = False) -> float:
    """The p-value of a chi-square test of `count` pairs of tokens."""
    logits = torch.randn(1 + VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 1.5
    return chance_of(
        params, logits, count, lambda chunk: sequences(params, proposal, CHUNK, chunk, logits, tree)
    )


def chance_of(
    params: SamplingParams, logits: torch.Tensor, count: int, draw: Callable[[int], torch.Tensor]
) -> float:
    """The p-value of a chi-square test.

    Args:
        params: The sampling parameters.
        logits: [17, 16], those of the first token, then those after each first token.
        count: The number of pairs.
        draw: Maps a seed to CHUNK pairs of tokens, [CHUNK, 2].
    """
    found = torch.zeros(VOCABULARY**2, dtype=torch.float64)
    for chunk in range(count // CHUNK):
        tokens = draw(chunk)
        found += torch.bincount(tokens[:, 0] * VOCABULARY + tokens[:, 1], minlength=VOCABULARY**2)
    p = torch.stack([exact(row, params) for row in logits])
    expected = (p[0].unsqueeze(1) * p[1:]).flatten() * count
    assert found[expected == 0].sum() == 0
    often = expected >= 5
    cells = [(found[often], expected[often])]
    if (~often & (expected > 0)).any():
        cells.append((found[~often].sum()[None], expected[~often].sum()[None]))
    seen, wanted = (torch.cat(each) for each in zip(*cells, strict=True))
    statistic = ((seen - wanted) ** 2 / wanted).sum()
    return torch.special.gammaincc(torch.tensor((len(seen) - 1) / 2).double(), statistic / 2).item()


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [
        *(("not drawn", 0.7), ("not drawn", 1.3), ("equal", 1.3), ("near", 0.7)),
        *(("bad", 0.7), ("elsewhere", 0.7)),
    ],
)
def test_pairs_of_tokens_have_the_models_distribution(kind: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=9, top_p=0.9, min_p=0.05)
    assert improbability(params, PROPOSALS.get(kind), DRAWS) > 0.001


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [("not drawn", 0.7), ("not drawn", 1.3), ("near", 0.7), ("bad", 1.3)],
)
def test_pairs_of_tokens_after_trees(kind: str, temperature: float) -> None:
    params = SamplingParams(temperature=temperature, top_k=9, top_p=0.9, min_p=0.05)
    assert improbability(params, PROPOSALS.get(kind), DRAWS, tree=True) > 0.001


class Tables(NamedTuple):
    """A draft's logits by the tokens after a text.

    Attributes:
        first: [1 + 16, 16], for the next token after the text, then after the text and one more token.
        second: [16, 16], for the token after each first draft.
    """

    first: torch.Tensor
    second: torch.Tensor


class Asked:
    """A sampled task. Its text ends with the token `newest`, unless this is -1."""

    __slots__ = ("draws", "newest", "params", "slot")

    def __init__(self, slot: int, params: SamplingParams, draws: Any, newest: int = -1) -> None:
        self.slot, self.params, self.draws, self.newest = slot, params, draws, newest


def tabled(kind: type[DraftModel], tables: Tables, **attributes: Any) -> Any:
    """Drafts of this kind, which look up the logits of their model."""

    class Tabled(kind):  # type: ignore[misc,valid-type]
        def __init__(self) -> None:
            self._newest, self._pin_memory, self._choose_tokens = torch.zeros(CHUNK).long(), False, choose
            self._most = 4 if self.are_trees else 2
            vars(self).update(attributes)

        def _extend(self, tasks: Any) -> Any:
            return [*tasks], tables.first[[1 + task.newest for task in tasks]]

        def _decode(self, tasks: Any, turn: int, drafted: Any) -> torch.Tensor:
            return tables.second[drafted[:, -1]]

        def _verify(self, tasks: Any, tokens: Any, limit: Any) -> Any:
            drafts = torch.stack([*tokens.values()])  # as many of each task
            if not drafts.numel():
                return self._extend(tasks)
            owners = [task for task in tasks for _ in range(drafts.shape[1])]
            return owners, tables.second[drafts.flatten()]

    return Tabled()


@pytest.fixture(scope="module")
def tables() -> dict[str, Any]:
    """A target's logits [17, 16], and the tables of drafts, for a vocabulary of 16 tokens.

    The drafts are a model of full attention, a model whose layer 0 is linear, and an MTP head.
    """
    small = {"vocab_size": VOCABULARY, "eos_token_id": 0, "pad_token_id": 0}
    config = Qwen3NextConfig(**CONFIG | small, mtp_num_hidden_layers=1, mtp_layer_types=[FULL])
    full = Qwen3NextConfig(**CONFIG | small | {"num_hidden_layers": 1, "layer_types": [FULL]})
    text, every = [3, 1, 4, 1, 5], range(VOCABULARY)
    models = []
    for seed, own_config in ((1, config), (2, config), (4, full)):
        models.append(Qwen3NextForCausalLM(own_config).eval())
        randomize(models[-1], seed)
    model = models[0]
    head = QwenHead(model, switchrail.Layout.from_config(config.to_dict()).drafts).eval()
    randomize(head, 3)
    scratch = Scratch(model, head.steps())
    with torch.no_grad():
        own, of_linear, of_full = (
            torch.stack(
                [one(torch.tensor([given])).logits[0, -1] for given in (text, *([*text, t] for t in every))]
            )
            for one in models
        )
    first = torch.stack([scratch.logits(text, []), *(scratch.logits([*text, t], []) for t in every)])
    second = torch.stack([scratch.logits(text, [t]) for t in every])
    return {
        "target": own * 1.5,
        "model": Tables(of_full, of_full[1:]),
        "linear": Tables(of_linear, of_linear[1:]),
        "mtp": Tables(first, second),
    }


KINDS: dict[str, tuple[str, type[DraftModel], dict[str, Any]]] = {
    "model": ("model", DraftModel, {}),
    "trees of a model": ("model", DraftTrees, {"branches": 2}),
    "linear": ("linear", DraftModel, {}),
    "trees of a linear": ("linear", DraftTrees, {"branches": 2}),
    "mtp": ("mtp", MtpDrafts, {}),
    "trees of mtp": ("mtp", MtpTrees, {"siblings": 2}),
}


def pairs_of(drafts: Any, params: SamplingParams, logits: torch.Tensor, seed: int) -> torch.Tensor:
    """[CHUNK, 2], the first two new tokens of sequences with these drafts."""
    draws = draws_of(CHUNK, seed)
    tokens = torch.full((CHUNK, 2), -1)
    tasks = [Asked(slot, params, one) for slot, one in enumerate(draws)]
    for limit in (4 if drafts.are_trees else 2, 1):
        drafted = drafts.propose(tasks, [limit] * len(tasks))
        proposed = torch.stack(drafted.tokens)
        before = torch.tensor([1 + task.newest for task in tasks])
        rows = torch.cat([logits[before].unsqueeze(1), logits[1 + proposed]], 1)
        lists = replace(drafted, tokens=proposed.tolist())
        left = [task.draws for task in tasks]
        found = verify(rows.flatten(0, 1), lists, [params] * len(tasks), left, choose)[:, :2]
        if limit == 1:
            tokens[[task.slot for task in tasks], 1] = found[:, 0]
            break
        tokens = found
        short = (tokens[:, 1] < 0).nonzero()[:, 0]
        places = zip(short.tolist(), tokens[short, 0].tolist(), strict=True)
        tasks = [Asked(slot, params, draws[slot], newest) for slot, newest in places]
    return tokens


@pytest.mark.parametrize(
    ("kind", "temperature"),
    [
        *(("model", 0.7), ("linear", 1.3), ("trees of a linear", 0.7), ("trees of a model", 1.3)),
        *(("mtp", 0.7), ("mtp", 1.3), ("trees of mtp", 0.7), ("trees of mtp", 1.3)),
    ],
)
def test_pairs_of_tokens_of_each_kind_of_draft(
    kind: str, temperature: float, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts draw their proposals from the distributions that they report.

    The logits come from two models and a head with random weights, whose proposals are all bad. Each class of
    drafts runs at both temperatures, and at the higher one with a mutant.
    """
    name, own, attributes = KINDS[kind]
    params = SamplingParams(temperature=temperature, top_k=9, top_p=0.9, min_p=0.05)
    drafts, logits = tabled(own, tables[name], **attributes), tables["target"]
    draw = partial(pairs_of, drafts, params, logits)
    assert chance_of(params, logits, DRAWS, draw) > 0.001
    if temperature == 0.7:
        return
    monkeypatch.setattr(draft_model, "draw", lambda odds, draws, choose: odds.argmax(-1))
    assert chance_of(params, logits, DRAWS // 10, draw) < 1e-6


@pytest.mark.parametrize("mutant", ["p for all", "not normalised"])
def test_the_test_notices_wrong_residuals(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mutant tests each sibling against p itself, or against max(0, p - q) without normalising it."""

    def without(rest: torch.Tensor, q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        less = (rest - q).clamp(min=0) if mutant == "not normalised" else rest
        return less, less.sum(-1, keepdim=True) <= 0

    monkeypatch.setattr(speculation, "_without", without)
    assert improbability(SamplingParams(temperature=1.3), PROPOSALS["near"], DRAWS // 5, tree=True) < 1e-6


@pytest.mark.parametrize("mutant", ["on equality", "always", "p alone"])
def test_the_test_notices_wrong_acceptance(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mutant accepts drafts with another probability than min(1, p / q)."""
    mutants: dict[str, Callable[..., torch.Tensor]] = {
        "on equality": lambda p, q, numbers: numbers < p,
        "always": lambda p, q, numbers: p > 0,
        "p alone": lambda p, q, numbers: numbers * p.max() < p,
    }
    monkeypatch.setattr(speculation, "_is_accepted", mutants[mutant])
    assert improbability(SamplingParams(temperature=1.3), PROPOSALS["near"], DRAWS // 5) < 1e-6


def test_the_better_the_proposal_the_more_is_accepted() -> None:
    params = SamplingParams(temperature=1.0)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(0))
    p = exact(logits[0], params)
    for proposal in PROPOSALS.values():
        q = proposal(p)
        torch.manual_seed(0)
        drafts = q.expand(CHUNK, -1).multinomial(1).tolist()
        rows = logits.expand(2 * CHUNK, -1)
        draws = draws_of(CHUNK, seed=0)
        runs = verify(rows, Drafted(drafts, q.expand(CHUNK, -1)), [params] * CHUNK, draws, choose)
        share = (runs[:, 1] >= 0).sum().item() / CHUNK
        wanted = torch.minimum(p, q).sum().item()
        assert abs(share - wanted) < 4 * math.sqrt(0.25 / CHUNK)


def test_a_sequence_takes_its_own_numbers_only() -> None:
    """A sequence gets the same tokens alone as beside others."""
    torch.manual_seed(0)
    count, params = 40, SamplingParams(temperature=1.0)
    logits, q = torch.randn(3 * count, VOCABULARY), torch.rand(2 * count, VOCABULARY).double()
    q /= q.sum(-1, keepdim=True)
    drafts = drawn(q).view(count, 2).tolist()
    draws = [random.Random(n) for n in range(count)]
    together = verify(logits, Drafted(drafts, q), [params] * count, draws)
    assert (together[:, 1] < 0).any()
    assert (together[:, 2] >= 0).any()
    for n in range(count):
        own = Drafted([drafts[n]], q[2 * n : 2 * n + 2])
        alone = verify(logits[3 * n : 3 * n + 3], own, [params], [random.Random(n)])
        assert torch.equal(alone[0], together[n])


def test_greedy_rows_and_rows_without_finite_logits() -> None:
    logits = torch.zeros(6, VOCABULARY)
    logits[range(6), range(6)] = 9.0
    logits[4] = float("nan")
    q = torch.full((3, VOCABULARY), 1 / VOCABULARY, dtype=torch.float64)
    greedy, sampled = SamplingParams(), SamplingParams(temperature=1e-9)
    draws = [random.Random(0), random.Random(0), random.Random(0)]
    drafted = Drafted([[0, 7], [], [4]], q)
    runs = verify(logits, drafted, [greedy, greedy, sampled], draws, choose)
    assert runs.tolist() == [[0, 1, ABSENT], [3, ABSENT, ABSENT], [-1, ABSENT, ABSENT]]
    assert draws[0].getstate() == random.Random(0).getstate()
