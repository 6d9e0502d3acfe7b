"""Tests of transformers models that Switchrail serves."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import switchrail.bridges.transformers as sr
import torch
from switchrail.errors import BridgeError, UnknownBackendError
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, StaticCache

from tests.bridges.conftest import END, Small, compare
from tests.families.made import CONFIGS

Get = Callable[[str], Small]

QUICK = ("kimi_linear", "minimax", "bamba", "lfm2")
"""With the trained checkpoint, these families use every op that has states. `make test-families` runs all
families."""

OWN = ("bailing_moe_linear", "bailing_moe_v2_5")
"""Families whose model definitions come with Switchrail. These definitions have no caches."""

FAMILIES = [
    "qwen3_next",
    *QUICK,
    *(pytest.param(name, marks=pytest.mark.families) for name in CONFIGS if name not in (*QUICK, *OWN)),
]


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_of_a_padded_batch(model_type: str, small_of: Get) -> None:
    small = small_of(model_type)
    expected = small.alone()
    with sr.use(small.model) as handle:
        compare(small.generate(), expected)
        assert all(f"{op} {phase}," in handle.explain() for _, op, phase, _ in handle.plan.table)


@pytest.mark.parametrize(
    "model_type",
    [
        "qwen3_next",
        *(pytest.param(name, marks=pytest.mark.families) for name in ("bamba", "lfm2", "kimi_linear")),
    ],
)
def test_beam_search_gives_the_same_tokens(model_type: str, small_of: Get) -> None:
    small = small_of(model_type)
    expected = small.generate(12, num_beams=3)
    with sr.use(small.model):
        assert small.generate(12, num_beams=3) == expected


def test_generation_without_a_cache(small: Small) -> None:
    expected = [(tokens[:4], margins[:4]) for tokens, margins in small.alone()]
    with sr.use(small.model):
        compare(small.generate(4, use_cache=False), expected)


def test_keys_and_values_stay_right_when_a_cache_grows(small: Small) -> None:
    """The cache grows for the second and the third piece of a text. Logits are those of the whole text."""
    ids = torch.randint(256, (3, 400), generator=torch.Generator().manual_seed(0))
    found, sizes = [], []
    with torch.no_grad():
        expected = small.model(ids).logits
        with sr.use(small.model):
            cache = DynamicCache(config=small.model.config)
            for piece in ids.split([50, 200, 150], dim=1):
                found.append(small.model(piece, past_key_values=cache).logits)
                sizes.append(cache.memory.tokens)
    assert sizes[0] < sizes[1] < sizes[2]
    torch.testing.assert_close(torch.cat(found, 1), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.families
@pytest.mark.parametrize("model_type", OWN)
def test_a_definition_without_caches(model_type: str, small_of: Get) -> None:
    small = small_of(model_type)
    prompt = torch.tensor([small.prompts[1]])
    with torch.no_grad():
        expected = small.model(prompt).logits
        with sr.use(small.model):
            torch.testing.assert_close(small.model(prompt).logits, expected, atol=1e-4, rtol=1e-4)


def test_the_first_use_of_each_op_is_logged(small: Small, caplog: pytest.LogCaptureFixture) -> None:
    """Each op and phase is logged once per served model, whatever the number of calls."""
    with caplog.at_level("INFO", logger="switchrail"), sr.use(small.model) as handle:
        small.generate(3)
        small.generate(3)
    lines = [record.message for record in caplog.records if record.message.startswith("first use")]
    assert sorted(lines) == sorted(
        {f"first use of {op} {phase}: torch" for _, op, phase, _ in handle.plan.table}
    )


def test_sampling_with_a_seed(small: Small) -> None:
    def sample() -> list[list[int]]:
        torch.manual_seed(1)
        return small.generate(8, do_sample=True, temperature=0.8, num_return_sequences=2)

    expected = sample()
    with sr.use(small.model):
        assert sample() == expected


def test_padding_on_the_right(small: Small) -> None:
    """With padding on the right, the next two tokens are those of each prompt alone."""
    batch = small.padded("right")
    lengths = [len(prompt) for prompt in small.prompts]
    with sr.use(small.model), torch.no_grad():
        positions = (batch["attention_mask"].cumsum(1) - 1).clamp_min(0)
        cache = DynamicCache(config=small.model.config)
        first = small.model(**batch, position_ids=positions, past_key_values=cache).logits
        tokens = first[range(3), [length - 1 for length in lengths]].argmax(-1)
        mask = torch.cat([batch["attention_mask"], torch.ones(3, 1, dtype=torch.long)], 1)
        after = (
            small.model(
                tokens[:, None],
                attention_mask=mask,
                position_ids=torch.tensor(lengths)[:, None],
                past_key_values=cache,
            )
            .logits[:, -1]
            .argmax(-1)
        )
    expected = [own[:2] for own, _ in small.alone()]
    assert [[a, b] for a, b in zip(tokens.tolist(), after.tolist(), strict=True)] == expected


def states_of(model: torch.nn.Module) -> list[tuple[list[str], str | None, int]]:
    """For each module of a model: its attributes, attention implementation, and number of hooks."""
    return [
        (
            [key for key, value in vars(part).items() if value is not None],
            getattr(getattr(part, "config", None), "_attn_implementation", None),
            len(part._forward_pre_hooks),
        )
        for part in model.modules()
    ]


def test_removal_restores_the_model(small: Small) -> None:
    model, inputs = small.model, small.padded()
    before = states_of(model)
    with torch.no_grad():
        expected = model(**inputs).logits
        with sr.use(model):
            served = model(**inputs).logits
        assert torch.equal(model(**inputs).logits, expected)
    assert not torch.equal(served, expected)
    with sr.use(model):
        assert states_of(model) != before
    assert states_of(model) == before


def test_two_calls_with_one_cache(small: Small) -> None:
    """In a conversation, a second call continues the cache of the first, or a copy of that cache."""
    prompt = torch.tensor([small.prompts[1]])
    (whole, _), (first, rest) = small.alone()[1], (prompt[:, :7], prompt[:, 7:])
    with sr.use(small.model):
        cache = DynamicCache(config=small.model.config)
        with torch.no_grad():
            small.model(first, past_key_values=cache)
        assert cache.get_seq_length() == 7
        for one in (copy.deepcopy(cache), cache):
            out = small.model.generate(
                torch.cat([first, rest], 1),
                attention_mask=torch.ones_like(prompt),
                past_key_values=one,
                max_new_tokens=5,
                **END,
            )
            assert out[0, prompt.shape[1] :].tolist() == whole[:5]


def test_a_cache_of_fixed_size(small: Small) -> None:
    """A cache of fixed size keeps its memory, and refuses more sequences or tokens than it was made for."""
    expected = [(tokens[:8], margins[:8]) for tokens, margins in small.alone()]
    with sr.use(small.model) as handle:
        cache = handle.cache(sequences=6, tokens=64)
        assert cache.memory is not None
        places = [tensor.data_ptr() for tensor in cache.memory.tensors()]
        for _ in range(2):
            compare(small.generate(8, past_key_values=cache), expected)
            cache.reset()
        small.generate(4, num_beams=2, past_key_values=cache)
        assert [tensor.data_ptr() for tensor in cache.memory.tensors()] == places
        cache.reset()
        with pytest.raises(BridgeError, match="at most 6"):
            small.generate(4, num_beams=3, past_key_values=cache)
        with pytest.raises(BridgeError, match="at most 64"):
            small.generate(60, past_key_values=cache)


def test_two_models_and_a_plain_one(small: Small, small_of: Get) -> None:
    other = small_of("lfm2")
    plain = copy.deepcopy(small.model)
    expected, others = small.generate(6), other.generate(6)
    with sr.use(small.model), sr.use(other.model):
        assert small.generate(6) == expected
        assert other.generate(6) == others
        assert Small("", plain, small.prompts).generate(6) == expected


def test_threads_can_share_a_served_model(small: Small) -> None:
    expected = small.generate(6)
    found: list[list[list[int]]] = []
    with sr.use(small.model):
        threads = [threading.Thread(target=lambda: found.append(small.generate(6))) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [expected] * 3


def test_a_compiled_model(small: Small) -> None:
    inputs = small.padded()
    with sr.use(small.model), torch.no_grad():
        expected = small.model(**inputs).logits
        compiled = torch.compile(small.model, backend="eager")
        assert torch.equal(compiled(**inputs).logits, expected)
        torch._dynamo.reset()
        with pytest.raises(Exception, match="plans each step on the host"):
            torch.compile(small.model, backend="eager", fullgraph=True)(**inputs)
    torch._dynamo.reset()


def test_hidden_states_are_those_of_the_unserved_model(small: Small) -> None:
    inputs = small.padded()
    mask = inputs["attention_mask"].bool()
    with torch.no_grad():
        expected = small.model(**inputs, output_hidden_states=True).hidden_states
        with sr.use(small.model):
            found = small.model(**inputs, output_hidden_states=True).hidden_states
            as_tuple = small.model(**inputs, return_dict=False)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one[mask], other[mask], atol=1e-4, rtol=1e-4)
    assert as_tuple[0].shape == (*mask.shape, small.model.config.vocab_size)


def test_training_is_refused(small: Small) -> None:
    inputs = small.padded()
    with sr.use(small.model):
        loss = small.model(**inputs, labels=inputs["input_ids"]).loss
        with pytest.raises(BridgeError, match="no gradients"):
            loss.backward()
        small.model.train()
        try:
            with pytest.raises(BridgeError, match="eval"):
                small.model(**inputs)
        finally:
            small.model.eval()
    with pytest.raises(BridgeError, match="eval"):
        sr.use(
            LlamaForCausalLM(
                LlamaConfig(num_hidden_layers=1, hidden_size=8, num_attention_heads=1, vocab_size=8)
            ).train()
        )


def test_refused_models(small: Small) -> None:
    with sr.use(small.model), pytest.raises(BridgeError, match="served already"):
        sr.use(small.model)
    with pytest.raises(BridgeError, match="model_type None"):
        sr.use(torch.nn.Linear(2, 2))

    class Other(type(small.model)):
        """A model definition from another module, such as a checkpoint's own code."""

    with pytest.raises(BridgeError, match="expected the definition in transformers"):
        sr.use(Other(small.model.config).eval())
    with pytest.raises(UnknownBackendError, match="triten"):
        sr.use(small.model, backends={"attention": "triten"})
    assert small.model.config._attn_implementation != "switchrail_bridge"


def test_refused_calls(small: Small) -> None:
    inputs, config = small.padded(), small.model.config
    filled = DynamicCache(config=config)
    with torch.no_grad():
        small.model(**inputs, past_key_values=filled)
    ids, offloaded = inputs["input_ids"], DynamicCache(config=config)
    offloaded.offloading = True  # set later, because making an offloaded cache needs a GPU
    with sr.use(small.model), torch.no_grad():
        for given, words in (
            ({"output_attentions": True}, "output_attentions"),
            ({"past_key_values": filled}, "before the model was served"),
            ({"past_key_values": StaticCache(config=config, max_cache_len=64)}, "StaticCache"),
            ({"past_key_values": offloaded}, "offloading"),
            ({"attention_mask": torch.ones(3, 1, 4, 4)}, r"shape \[3, 1, 4, 4\]"),
            ({"attention_mask": torch.zeros_like(ids)}, "padding only"),
            ({"attention_mask": torch.ones(3, 2)}, r"shape \[3, 2\]"),
            ({"seq_idx": ids}, "seq_idx"),
        ):
            with pytest.raises(BridgeError, match=words):
                small.model(ids, **given)
        recording = DynamicCache(config=config)
        recording.activate_past_recording()
        with pytest.raises(BridgeError, match="roll back"):
            small.model(ids, past_key_values=recording)
        served = DynamicCache(config=config)
        small.model(**inputs, past_key_values=served)
        with pytest.raises(BridgeError, match="hidden later"):
            small.model(ids[:, :1], attention_mask=torch.ones(3, ids.shape[1] + 1), past_key_values=served)
    with pytest.raises(BridgeError, match="filled by a model"):
        small.model(ids[:, :1], past_key_values=served)


@pytest.mark.parametrize("model_type", ["lfm2", "kimi_linear"])
def test_a_copy_of_a_served_model_is_plain(model_type: str, small_of: Get) -> None:
    """A copy of a served model can be called and served itself, before and after the original's handle is
    removed."""
    small = small_of(model_type)
    inputs, before = small.padded(), states_of(small.model)
    with torch.no_grad():
        expected = small.model(**inputs).logits
        with sr.use(small.model):
            served = small.model(**inputs).logits
            other = copy.deepcopy(small.model)
            assert states_of(other) == before
            assert other.config is other.model.config
            assert torch.equal(other(**inputs).logits, expected)
            with sr.use(other):
                assert torch.equal(other(**inputs).logits, served)
            assert torch.equal(small.model(**inputs).logits, served)
        with sr.use(other):
            assert torch.equal(other(**inputs).logits, served)
        assert torch.equal(other(**inputs).logits, expected)


IDS = torch.tensor([[5, 6, 7, 8, 9]])


def llama(seed: int = 0, config: LlamaConfig | None = None) -> LlamaForCausalLM:
    """A model with random weights, whose padding token is 0."""
    torch.manual_seed(seed)
    made = config or LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        pad_token_id=0,
        eos_token_id=None,
    )
    return LlamaForCausalLM(made).eval()


def greedy(model: LlamaForCausalLM, **options: Any) -> list[list[int]]:
    """`IDS`, followed by five greedy tokens."""
    found: list[list[int]] = model.generate(IDS, max_new_tokens=5, do_sample=False, **options).tolist()
    return found


@pytest.mark.parametrize("is_shared", [False, True], ids=["own configs", "one config"])
@pytest.mark.parametrize("first", [0, 1])
def test_two_models_of_one_class(first: int, is_shared: bool) -> None:
    """Two served models don't affect each other, even with one config, whichever is removed first."""
    one = llama(0)
    models = one, llama(1, one.config if is_shared else None)
    before = one.config._attn_implementation
    expected = [greedy(model) for model in models]
    handles = []
    for model in models:
        handles.append(sr.use(model))
        assert [greedy(each) for each in models] == expected
    for number in (first, 1 - first):
        handles[number].remove()
        assert [greedy(each) for each in models] == expected
    assert one.config._attn_implementation == before
    assert all(model.model.config is model.config for model in models)


def test_a_padded_call_with_one_token(small: Small) -> None:
    ids, mask = torch.tensor([[0, 0, 5]]), torch.tensor([[0, 0, 1]])
    for model in (llama(), small.model):
        with torch.no_grad():
            expected = model(ids[:, 2:]).logits
            with sr.use(model):
                found = model(ids, attention_mask=mask)
                assert found.logits.shape == (1, 3, expected.shape[2])
                torch.testing.assert_close(found.logits[:, 2:], expected, atol=1e-4, rtol=1e-4)


def test_changes_of_a_served_models_config() -> None:
    """Other attention implementations are refused. Other changes of the config reach the model."""
    model = llama()
    expected, before = greedy(model), model.config._attn_implementation
    with sr.use(model), torch.no_grad():
        model.set_attn_implementation("eager")
        with pytest.raises(BridgeError, match="got attention implementation 'eager'"):
            model(IDS)
        with pytest.raises(BridgeError, match="got attention implementation 'sdpa'"):
            model.model.config._attn_implementation = "sdpa"
        model.set_attn_implementation(before)
        assert greedy(model) == expected
        model.config.output_hidden_states = True
        assert len(model.model(IDS).hidden_states) == 3
    assert model.model.config.output_hidden_states


def test_a_served_model_is_not_pickled(tmp_path: Path) -> None:
    model = llama()
    with sr.use(model):
        for part in (model, model.model.layers[0]):
            with pytest.raises(BridgeError, match="can't be pickled"):
                torch.save(part, tmp_path / "model")
        model.save_pretrained(tmp_path)
    torch.save(model, tmp_path / "model")
    assert "switchrail" not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("change", [torch.bfloat16, "meta"])
def test_a_model_moved_or_cast_while_served(change: Any) -> None:
    model = llama()
    with sr.use(model), torch.no_grad():
        model.to(change)
        with pytest.raises(BridgeError, match="moved or cast after use"):
            model(IDS)


@pytest.mark.parametrize("model_type", ["llama", "qwen3_next"])
def test_a_cache_without_tokens_serves_any_model(model_type: str, small_of: Get) -> None:
    """After a refused call, a failed call or a reset, an unserved model can use the cache."""
    model = small_of(model_type).model
    refused, failed, emptied = (DynamicCache(config=model.config) for _ in range(3))
    with torch.no_grad():
        expected = model(IDS).logits
        with sr.use(model) as handle:
            with pytest.raises(BridgeError, match="shape"):
                model(IDS, past_key_values=refused, attention_mask=torch.ones(1, 1, 5, 5))
            assert type(refused) is DynamicCache
            hook = model.model.layers[1].register_forward_pre_hook(lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                model(IDS, past_key_values=failed)
            hook.remove()
            model(IDS, past_key_values=emptied)
            emptied.reset()
            fixed = handle.cache(1, 8)
        for one in (refused, failed, emptied):
            assert torch.equal(model(IDS, past_key_values=one).logits, expected)
            assert type(one) is DynamicCache
            assert one.get_seq_length() == 5
        with pytest.raises(BridgeError, match="made by the handle"):
            model(IDS, past_key_values=fixed)


def test_an_emptied_cache_continues_with_more_sequences(small: Small) -> None:
    with sr.use(small.model), torch.no_grad():
        cache = DynamicCache(config=small.model.config)
        small.model(IDS, past_key_values=cache)
        cache.reset()
        many = small.model(IDS.repeat(3, 1), past_key_values=cache).logits
        torch.testing.assert_close(many, small.model(IDS).logits.expand(3, -1, -1), atol=1e-5, rtol=1e-5)


def test_a_batch_in_which_a_sequence_ended_early(small: Small) -> None:
    """Padding that `generate` adds after a sequence's end is forgotten when a later mask hides it."""
    model, ids = llama(), torch.tensor([[0, 6, 7], [9, 3, 4]])
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True}
    end = int(model.generate(ids, attention_mask=(ids != 0).long(), **options).sequences[0, 4])

    def generate() -> list[list[int]]:
        first = model.generate(ids, attention_mask=(ids != 0).long(), eos_token_id=end, **options)
        assert (first.sequences[0, 5:] == 0).all()
        assert (first.sequences[1] != 0).all()
        whole = torch.cat([first.sequences, torch.tensor([[11, 12], [13, 14]])], 1)
        found = model.generate(
            whole, attention_mask=(whole != 0).long(), past_key_values=first.past_key_values, **options
        )
        tokens: list[list[int]] = found.sequences.tolist()
        return tokens

    expected = generate()
    with sr.use(model), torch.no_grad():
        assert generate() == expected
        for hidden in ([1, 0, 1, 1], [0, 1, 1, 1]):
            cache = DynamicCache(config=model.config)
            model(IDS[:, :3], past_key_values=cache)
            with pytest.raises(BridgeError, match="hidden later"):
                model(IDS[:, :1], attention_mask=torch.tensor([hidden]), past_key_values=cache)
    with sr.use(small.model), torch.no_grad():
        cache = DynamicCache(config=small.model.config)
        small.model(IDS[:, :3], past_key_values=cache)
        with pytest.raises(BridgeError, match="no recurrent states"):
            small.model(IDS[:, :1], attention_mask=torch.tensor([[1, 1, 0, 1]]), past_key_values=cache)


def test_cropping_a_padded_batch() -> None:
    """A crop is refused if it would remove a column with padding, or more columns than there are."""
    model, ids = llama(), torch.tensor([[5, 6, 0], [7, 8, 9]])
    with sr.use(model), torch.no_grad():
        cache = DynamicCache(config=model.config)
        model(ids, attention_mask=(ids != 0).long(), past_key_values=cache)
        model(ids[:, :2], past_key_values=cache)
        cache.crop(-1)
        assert cache.get_seq_length() == 4
        with pytest.raises(BridgeError, match="got 2 columns to remove, expected at most 1"):
            cache.crop(-2)
        whole = DynamicCache(config=model.config)
        model(IDS, past_key_values=whole)
        whole.crop(-1)
        with pytest.raises(BridgeError, match="expected at most 4"):
            whole.crop(-5)


def test_gradients_of_soft_prompts_are_refused() -> None:
    model = llama().requires_grad_(False)
    prompt = model.get_input_embeddings()(IDS).clone().requires_grad_()
    with sr.use(model):
        loss = model(inputs_embeds=prompt).logits.sum()
        with pytest.raises(BridgeError, match="no gradients"):
            loss.backward()


@pytest.mark.parametrize("use_cache", [False, True])
def test_outputs_as_tuples_have_the_same_types(use_cache: bool) -> None:
    model = llama()
    options = {"use_cache": use_cache, "return_dict": False, "output_hidden_states": True}

    def types() -> list[str]:
        return [type(value).__name__.removeprefix("Served") for value in model.model(IDS, **options)]

    with torch.no_grad():
        expected = types()
        with sr.use(model):
            assert types() == expected


def test_drafts_of_a_model_without_states(small_of: Get) -> None:
    """Prompt lookup drafts tokens, and removes rejected tokens from the cache."""
    small = small_of("llama")
    prompt = torch.tensor([small.prompts[1] * 2])
    options = {**END, "attention_mask": torch.ones_like(prompt), "max_new_tokens": 12}
    expected = small.model.generate(prompt, **options)
    with sr.use(small.model):
        assert torch.equal(small.model.generate(prompt, prompt_lookup_num_tokens=3, **options), expected)


def test_a_call_that_fails_half_way(small: Small) -> None:
    """After a failed call, the cache is refused, since some layers have new states. After a reset, it can be
    used."""
    prompt = torch.tensor([small.prompts[1]])

    def fail(*_: object) -> None:
        raise OSError("no power")

    with sr.use(small.model), torch.no_grad():
        cache = DynamicCache(config=small.model.config)
        expected = small.model(prompt, past_key_values=cache).logits
        hook = small.model.model.layers[5].register_forward_pre_hook(fail)
        with pytest.raises(OSError, match="no power"):
            small.model(prompt[:, :1], past_key_values=cache)
        hook.remove()
        with pytest.raises(BridgeError, match="an earlier call with this cache failed"):
            small.model(prompt[:, :1], past_key_values=cache)
        cache.reset()
        assert torch.equal(small.model(prompt, past_key_values=cache).logits, expected)
