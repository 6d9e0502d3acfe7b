"""Tests of the summary of failures: their causes, and the properties that only failed cases have."""

from switchrail.testing.summary import CaseResult, summarise


def case(id, *causes, traits=(), passed=False):
    return CaseResult(id=f"kda/{id}", passed=passed, causes=causes, traits=traits)


def test_nothing_failed():
    assert summarise([]) == []
    assert summarise([case("prefill/float32/ragged", passed=True)]) == []


def test_failures_by_cause():
    fresh = "only sequences without an initial state are wrong"
    results = [
        case("prefill/float32/a", fresh, "NaN is written"),
        case("prefill/float32/b", fresh),
        case("prefill/float32/c", fresh, "NaN is written"),
        case("prefill/float32/d", fresh),
        case("verify/float32/e"),
    ]
    assert summarise(results[:4])[:2] == [
        "4 failures, by cause:",
        f"  all: {fresh} (kda/prefill/float32/a, kda/prefill/float32/b, kda/prefill/float32/c and 1 more)",
    ]
    assert summarise(results)[1:] == [
        f"  4: {fresh} (kda/prefill/float32/a, kda/prefill/float32/b, kda/prefill/float32/c and 1 more)",
        "  2: NaN is written (kda/prefill/float32/a, kda/prefill/float32/c)",
        "  1: no cause was found (kda/verify/float32/e)",
    ]


def test_a_failure_without_a_cause_counts_for_the_commonest_possible_one():
    fresh, last = "only sequences without an initial state are wrong", "only last rows are wrong"
    whole = CaseResult(id="kda/prefill/float32/c", passed=False, possible=(last, fresh))
    results = [
        case("prefill/float32/a", fresh),
        case("prefill/float32/b", fresh),
        case("decode/float32/b", last),
    ]
    assert summarise([whole])[1] == "  1: no cause was found (kda/prefill/float32/c)"
    assert summarise([*results, whole])[1:] == [
        f"  3: {fresh} (kda/prefill/float32/a, kda/prefill/float32/b, kda/prefill/float32/c)",
        f"  1: {last} (kda/decode/float32/b)",
    ]


def test_properties_that_only_failures_have():
    results = [
        case("prefill/float32/a", "the decay is ignored", traits=("gate=decaying",)),
        case("prefill/float32/b", "the decay is ignored", traits=("gate=decaying", "initial=all")),
        case("prefill/float32/c", passed=True, traits=("gate=one",)),
        case("prefill/bfloat16/c", passed=True, traits=("gate=one",)),
        case("decode/float32/d", passed=True),
    ]
    assert summarise(results)[2:] == [
        "  all 2 failing cases have gate=decaying, and no passing case does",
        "  all 2 cases with gate=one pass",
    ]
