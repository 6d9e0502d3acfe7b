"""The bridge to SGLang, on stand-ins for the few SGLang classes that it uses.

`make test-engines` compares the stand-ins' signatures with SGLang's, and runs the bridge in SGLang's engine.
"""

from __future__ import annotations

import pickle
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from switchrail.bridges import sglang as bridge
from switchrail.bridges.sglang import names, routes
from switchrail.bridges.sglang.versions import VERSIONS, version_of
from switchrail.errors import BackendUnfitError, BridgeError, ContractError, UnknownBackendError
from switchrail.testing import isolated
from torch import nn

from tests.sglang_bridge.test_platform import VendorsPlatform

LINEAR = "sglang.srt.layers.attention.linear"
H, HV, K, V, W, LAYERS = 2, 4, 8, 8, 4, 2
CHANNELS = 2 * H * K + HV * V
CHUNK = 64


def enum():
    return import_module(f"{LINEAR}.utils").LinearAttnKernelBackend


def choices(version):
    return import_module("sglang.srt.arg_groups.choices" if version == "v23" else "sglang.srt.server_args")


only_v23 = pytest.mark.parametrize("version", ["v23"], indirect=True)


def test_a_version_that_is_not_known_is_refused_with_those_that_are():
    assert {version_of(version).choices for version in VERSIONS}
    with pytest.raises(BridgeError, match=r"no bridge to SGLang 0\.5\.99") as caught:
        version_of("0.5.99")
    assert caught.value.valid == VERSIONS == ("0.5.11", "0.5.23")


def test_our_names_are_choices(runtime, version):
    lists = choices(version)
    linear = lists.LINEAR_ATTN_KERNEL_BACKEND_CHOICES
    assert linear[:3] == ["triton", "flashinfer", "switchrail"]
    assert {"switchrail:plain", "switchrail:torch"} <= set(linear)
    assert "switchrail:plain" not in lists.ATTENTION_BACKEND_CHOICES
    assert "switchrail:torch" in lists.ATTENTION_BACKEND_CHOICES
    registered = import_module("sglang.srt.layers.attention.attention_registry").ATTENTION_BACKENDS
    assert registered.keys() >= {"switchrail", "switchrail:torch"}


def test_an_activation_that_fails_leaves_sglang_as_it_was(sglang, version, monkeypatch):
    def fail(name):
        raise RuntimeError("no registration")

    sglang(version)
    registry = import_module("sglang.srt.layers.attention.attention_registry")
    monkeypatch.setattr(registry, "register_attention_backend", fail)
    lists = choices(version)
    before = [*lists.LINEAR_ATTN_KERNEL_BACKEND_CHOICES], [*lists.ATTENTION_BACKEND_CHOICES]
    with isolated() as runtime:
        runtime.load()
        hooks = {*runtime.hooks.list(), *runtime.hooks.waiting()}
        with pytest.raises(RuntimeError, match="no registration"):
            bridge.activate()
        assert {*runtime.hooks.list(), *runtime.hooks.waiting()} == hooks
        assert before == (lists.LINEAR_ATTN_KERNEL_BACKEND_CHOICES, lists.ATTENTION_BACKEND_CHOICES)


@pytest.mark.parametrize("name", ["tritn", "TRITON", "", 42, "switchrail:plane"])
def test_a_name_that_nobody_registered_is_an_error(runtime, name):
    with pytest.raises(UnknownBackendError) as caught:
        enum()(name)
    assert {"triton", "switchrail", "switchrail:plain"} <= set(caught.value.valid)
    if name == "switchrail:plane":
        assert caught.value.nearest[0] == "switchrail:plain"


@only_v23
def test_names_of_two_plugins_stay_apart(runtime):
    choices("v23").add_linear_attn_kernel_backend_choices(["one", "two"])
    one, two = enum()("one"), enum()("two")
    assert one is enum()("one")
    assert one is not two
    assert (one.value, two.value) == ("one", "two")
    assert (one.is_custom(), one.is_triton()) == (True, False)
    assert not enum()("switchrail:plain").is_custom()


def test_a_name_of_ours_stays_the_same_in_another_process(runtime):
    ours = enum()("switchrail:plain")
    assert ours is not enum()("switchrail")
    assert pickle.loads(pickle.dumps(ours)) is ours


def test_without_the_bridge_every_name_is_custom(sglang):
    sglang("v23")
    assert enum()("tritn") is enum()("switchrail") is enum().CUSTOM


@only_v23
def test_states_are_kept_within_prompts_with_our_names_too(runtime):
    overrides = import_module("sglang.srt.arg_groups.overrides")
    asked = {
        name: overrides.supports_mamba_cache_extra_buffer(SimpleNamespace(linear_attn_backend=name), None)
        for name in ("triton", "flashinfer", "switchrail", "switchrail:plain")
    }
    assert asked == {"triton": True, "flashinfer": False, "switchrail": True, "switchrail:plain": True}


class Model(nn.Module):
    """Linear attention layers as SGLang makes them."""

    def __init__(self, family):
        super().__init__()
        self.family = family
        self.decays = (HV, K) if family == "kda" else (HV,)
        make = import_module("sglang.srt.layers.radix_linear_attention").RadixLinearAttention
        draw = torch.Generator().manual_seed(3)
        self.layers = nn.ModuleList(
            make(
                2 * i,
                *(H, H, HV, K, K, V),
                conv_weights=torch.randn(CHANNELS, W, generator=draw) * 0.5,
                A_log=torch.randn((1, 1, HV, 1) if family == "kda" else HV, generator=draw) * 0.3,
                dt_bias=torch.randn(self.decays, generator=draw).flatten() * 0.3,
                lower_bound=-5.0 if family == "kda" and i else None,
            )
            for i in range(LAYERS)
        )


class Pools:
    """SGLang's convolution windows and states, each in one tensor for all layers.

    KDA's windows have the channels innermost.
    """

    def __init__(self, slots, family, drafted):
        swapped = family == "kda"
        window = (W - 1, CHANNELS) if swapped else (CHANNELS, W - 1)
        self.mamba_map = {2 * i: i for i in range(LAYERS)}
        self.own, self.own_rows = torch.zeros(LAYERS, slots, *window), None
        self.temporal, self.rows = torch.zeros(LAYERS, slots, HV, V, K), None
        self.conv = self.own.transpose(-1, -2) if swapped else self.own
        if drafted:
            self.own_rows = torch.zeros(LAYERS, 4, drafted, *window)
            self.conv_rows = self.own_rows.transpose(-1, -2) if swapped else self.own_rows
            self.rows = torch.zeros(LAYERS, 4, drafted, HV, V, K)

    def mamba2_layer_cache(self, layer_id):
        i = layer_id // 2
        drafts = {}
        if self.rows is not None:
            drafts = {"intermediate_ssm": self.rows[i], "intermediate_conv_window": [self.own_rows[i]]}
        return SimpleNamespace(conv=[self.own[i]], temporal=self.temporal[i], **drafts)


@pytest.fixture
def served(runtime, version):
    """Returns a function that makes a model's linear backend in SGLang, with names of kernels by phase."""

    def make(
        prefill="switchrail",
        decode="switchrail",
        slots=8,
        family="gated_delta",
        drafts=None,
        verify=None,
        draft_model=None,
        accept_lens_pool=None,
        algorithm="EAGLE",
    ):
        backends = SimpleNamespace(
            decode=enum()(decode), prefill=enum()(prefill), verify=enum()(verify or "triton")
        )
        options = {"speculative_algorithm": None}
        if drafts is not None:
            names = ("speculative_algorithm", "speculative_num_draft_tokens", "speculative_eagle_topk")
            options = dict(zip(names, (algorithm, *drafts), strict=True))
        if version == "v11":
            import_module(f"{LINEAR}.utils").CHOSEN.update(decode=backends.decode, prefill=backends.prefill)
        else:
            import_module("sglang.srt.runtime_context").OPTIONS.update(
                options, linear_attn_backend=decode, linear_attn_verify_backend=verify
            )
        runner = SimpleNamespace(
            model=Model(family) if draft_model is None else draft_model,
            device="cpu",
            dtype=torch.float32,
            is_draft_worker=draft_model is not None,
            linear_attn_backends=backends,
            accept_lens_pool=accept_lens_pool,
            req_to_token_pool=Pools(slots, family, drafts[0] if drafts else 0),
            model_config=SimpleNamespace(context_len=256),
            server_args=SimpleNamespace(disable_cuda_graph=True, **options),
        )
        name = "KDA" if family == "kda" else "GDN"
        backend = getattr(import_module(f"{LINEAR}.{name.lower()}_backend"), f"{name}AttnBackend")(runner)
        return SimpleNamespace(backend=backend, model=runner.model, pools=runner.req_to_token_pool)

    return make


class Mode:
    """SGLang's mode of a pass."""

    def __init__(self, name):
        self.name = name

    def is_idle(self):
        return self.name == "idle"

    def is_decode(self):
        return self.name == "decode"

    def is_decode_or_idle(self):
        return self.name in ("decode", "idle")

    def is_extend(self):
        return self.name in ("extend", "verify")

    def is_target_verify(self):
        return self.name == "verify"


def passed(served, mode, rows, slots, prefixes=None, keep=None, ends=None, links=(None, None)):
    """Run a pass of all layers on random rows; return the inputs and the results of each layer."""
    starts = torch.tensor([0, *torch.tensor(rows).cumsum(0).tolist()], dtype=torch.int32)
    batch = SimpleNamespace(
        forward_mode=Mode(mode),
        batch_size=len(rows),
        extend_seq_lens_cpu=rows,
        extend_prefix_lens_cpu=prefixes or [0] * len(rows),
        extend_prefix_lens=torch.tensor(prefixes or [0] * len(rows)),
        mamba_track_mask=None if keep is None else torch.tensor([slot > 0 for slot in keep]),
        mamba_track_seqlens=(
            torch.tensor(rows) + torch.tensor(prefixes or [0] * len(rows))
            if ends is None
            else torch.tensor(ends)
        ),
        mamba_track_indices=None if keep is None else torch.tensor(keep),
        metadata=SimpleNamespace(
            query_start_loc=starts,
            mamba_cache_indices=torch.tensor(slots, dtype=torch.int32),
            has_mamba_track_mask=keep is not None,
            retrieve_next_token=links[0],
            retrieve_next_sibling=links[1],
        ),
    )
    served.backend.init_forward_metadata(batch)
    run = served.backend.forward_decode if mode == "decode" else served.backend.forward_extend
    found = []
    for module in getattr(served.model, "layers", ()):
        mixed = torch.randn(sum(rows), CHANNELS)
        a, b = torch.randn(sum(rows), *served.model.decays), torch.randn(sum(rows), HV)
        found.append((mixed, a, b, run(module, batch, mixed, a.flatten(1), b)))
    return found


def expected(module, mixed, a, b, conv, state):
    """The results and states of one sequence from its window and state, in float64, row by row."""
    inputs = torch.cat([conv.double(), mixed.double().T], dim=1)
    windows = inputs.unfold(1, conv.shape[1] + 1, 1)
    ys = nn.functional.silu((windows * module.conv_weights.double()[:, None]).sum(-1)).T
    queries, keys, values = (part.unflatten(1, (-1, K)) for part in ys.split([H * K, H * K, HV * V], dim=1))
    queries, keys = (
        (each * (each.square().sum(-1, keepdim=True) + 1e-6).rsqrt()).repeat_interleave(HV // H, 1)
        for each in (queries, keys)
    )
    decays = a.double()
    rate = module.A_log.double().exp().view(HV, *[1] * (decays.ndim - 2))
    raw = decays + module.dt_bias.double().view(decays.shape[1:])
    gates = -rate * nn.functional.softplus(raw)
    if module.lower_bound is not None:
        gates = module.lower_bound * torch.sigmoid(rate * raw)
    state = state.double()
    results = []
    rows = gates.exp().view(len(mixed), HV, 1, -1), b.double().sigmoid()[..., None], queries, keys, values
    for decay, write, q, k, v in zip(*rows, strict=True):
        state = state * decay
        predicted = (state * k[:, None]).sum(-1)
        state = state + (write * (v - predicted))[..., None] * k[:, None]
        results.append((state * q[:, None]).sum(-1) * K**-0.5)
    return torch.stack(results), inputs[:, len(mixed) :], state


def check(served, found, before, rows, slots, prefixes=None, keep=None, after=None):
    """Compare the results and the pools of a pass with the recurrence."""
    for i, (module, (mixed, a, b, got)) in enumerate(zip(served.model.layers, found, strict=True)):
        assert got.shape == (1, sum(rows), HV, V)
        row = 0
        for n, (count, slot) in enumerate(zip(rows, slots, strict=True)):
            conv, state = before.conv[i, slot], before.temporal[i, slot]
            if prefixes is not None and prefixes[n] == 0:
                conv, state = torch.zeros_like(conv), torch.zeros_like(state)
            own = slice(row, row + count)
            out, last_conv, last_state = expected(module, mixed[own], a[own], b[own], conv, state)
            torch.testing.assert_close(got[0, own].double(), out, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(served.pools.conv[i, slot].double(), last_conv, rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(
                served.pools.temporal[i, slot].double(), last_state, rtol=1e-4, atol=1e-5
            )
            if keep is not None and keep[n] > 0:
                own = slice(row, row + (count // CHUNK * CHUNK if after is None else after[n]))
                _, conv, state = expected(module, mixed[own], a[own], b[own], conv, state)
                torch.testing.assert_close(served.pools.conv[i, keep[n]].double(), conv, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(
                    served.pools.temporal[i, keep[n]].double(), state, rtol=1e-4, atol=1e-5
                )
            row += count


@only_v23
@pytest.mark.parametrize("name", ["switchrail:torch", "switchrail:interpreted"])
@pytest.mark.parametrize("mode", ["extend", "decode"])
def test_kimi_delta_attention(served, mode, name):
    made = served(name, name, family="kda", slots=9)
    made.pools.own.normal_()
    made.pools.temporal.normal_()
    rows, slots, prefixes, keep = [70, 3], [2, 5], [0, 8], [3, 0]
    if mode == "decode":
        rows, prefixes, keep = [1, 1], None, None
    before = copy(made.pools)
    found = passed(made, mode, rows, slots, prefixes, keep)
    check(made, found, before, rows, slots, prefixes, keep)
    phase = mode.replace("extend", "prefill")
    bound = made.backend.switchrail.steps.dispatchers[phase].bound
    assert bound.backend("kda", phase, 0).op == "kda"


@only_v23
def test_decode_rows_that_sglang_calls_prompts_are_decoded(served):
    made = served()
    slots = torch.tensor([5, 2], dtype=torch.int32)
    starts = torch.arange(3, dtype=torch.int32)
    metadata = SimpleNamespace(query_start_loc=starts, mamba_cache_indices=slots, has_mamba_track_mask=False)
    batch = SimpleNamespace(
        forward_mode=Mode("extend"), logical_forward_mode=Mode("decode"), batch_size=2, metadata=metadata
    )
    made.backend.init_forward_metadata(batch)
    for module in made.model.layers:
        mixed, (a, b) = torch.randn(2, CHANNELS), torch.randn(2, 2, HV)
        assert made.backend.forward_decode(module, batch, mixed, a, b).shape == (1, 2, HV, V)


@only_v23
def test_whole_projections_are_cut_into_views(served):
    made = served()
    made.pools.temporal.normal_()
    passed(made, "decode", [1, 1], [5, 2])
    before, found = copy(made.pools), []
    batch = SimpleNamespace(forward_mode=Mode("decode"))
    for module in made.model.layers:
        whole, gates = torch.randn(2, CHANNELS + HV * V), torch.randn(2, 2 * HV)
        out, z = made.backend.forward_decode(module, batch, (whole, gates), gates, gates)
        assert torch.equal(z.flatten(1), whole[:, CHANNELS:])
        found.append((whole[:, :CHANNELS], gates[:, HV:], gates[:, :HV], out))
    check(made, found, before, [1, 1], [5, 2])


@only_v23
def test_prompts_are_not_recorded_where_ours_serve_them(served):
    kinds = {names: served(*names, family="kda").backend for names in (("triton",) * 2, ("switchrail",) * 2)}
    assert [backend.supports_prefill_graph_extend() for backend in kinds.values()] == [True, False]


def copy(pools):
    return SimpleNamespace(conv=pools.conv.clone(), temporal=pools.temporal.clone())


NAMES = ["switchrail:torch", "switchrail:plain", "switchrail:interpreted"]
"""A backend with all features, one without (so that inputs are adapted for it), and the Triton backend."""
EACH = [*[("v23", name) for name in NAMES], ("v11", NAMES[0])]


@pytest.mark.parametrize(("version", "name"), EACH, indirect=["version"])
def test_prompts_and_tokens_on_sglangs_memory(served, version, name):
    torch.manual_seed(0)
    made = served(name, name)
    made.pools.conv.normal_()
    made.pools.temporal.normal_()
    for mode, rows, slots, prefixes in (
        ("extend", [3, 1, 70], [2, 5, 1], [0, 8, 8]),
        ("decode", [1, 1], [5, 2], None),
    ):
        before = copy(made.pools)
        found = passed(made, mode, rows, slots, prefixes)
        check(made, found, before, rows, slots, prefixes)
    if name == "switchrail:plain":
        bound = made.backend.switchrail.steps.dispatchers["decode"].bound
        assert bound.backend("gated_delta", "decode", 0) is bound.backend("gated_delta", "prefill", 0)
        assert bound.backend("gated_delta", "decode", 0).calls == 2 * LAYERS
    assert made.backend.kept == ([0, 2] if version == "v23" else [None, None])
    made.backend.switchrail.steps.end()
    assert made.backend.switchrail.steps.bypassed == 0


@pytest.mark.parametrize(("version", "name"), EACH, indirect=["version"])
def test_states_for_the_prefix_cache(served, name):
    torch.manual_seed(1)
    made = served(name, name, slots=12)
    made.pools.conv.normal_()
    made.pools.temporal.normal_()
    rows, slots, prefixes, keep = [70, 5, CHUNK, 2 * CHUNK + 9], [2, 5, 1, 7], [0, 8, 0, CHUNK], [3, 0, 4, 8]
    before = copy(made.pools)
    found = passed(made, "extend", rows, slots, prefixes, keep)
    check(made, found, before, rows, slots, prefixes, keep)


@pytest.mark.parametrize(("version", "name"), EACH, indirect=["version"])
@pytest.mark.parametrize("beyond", [0, 1])
def test_states_within_prompts_where_others_branch_off(served, name, beyond):
    """States in the middle of prompts are kept.

    SGLang names the token at which another prompt branches off, or the one after it. It names -1 if it keeps
    no state of a prompt.
    """
    torch.manual_seed(2)
    made = served(name, name, slots=12)
    made.pools.conv.normal_()
    made.pools.temporal.normal_()
    rows, slots, prefixes = [3 * CHUNK + 5, 7, 2 * CHUNK, CHUNK + 3], [2, 5, 1, 7], [CHUNK, 8, 0, 0]
    keep, after = [3, -1, 4, -1], [2 * CHUNK, 0, CHUNK, 0]
    ends = [
        start + count + beyond if slot > 0 else -1
        for start, count, slot in zip(prefixes, after, keep, strict=True)
    ]
    before = copy(made.pools)
    found = passed(made, "extend", rows, slots, prefixes, keep, ends)
    check(made, found, before, rows, slots, prefixes, keep, after)
    untouched = [slot for slot in range(1, 12) if slot not in (*slots, *keep)]
    assert torch.equal(made.pools.conv[:, untouched], before.conv[:, untouched])
    assert torch.equal(made.pools.temporal[:, untouched], before.temporal[:, untouched])


def test_padding_has_slot_0_repeatedly(served):
    made = served()
    made.pools.temporal.normal_()
    before = copy(made.pools)
    found = passed(made, "decode", [1, 1, 1], [5, 0, 0])
    check(made, [(m[:1], a[:1], b[:1], got[:, :1]) for m, a, b, got in found], before, [1], [5])


def test_phases_that_ask_for_sglangs_names_stay_sglangs(served):
    own = served("triton", "triton")
    assert own.backend.switchrail is None
    assert [each[-1] for each in passed(own, "extend", [3], [1])] == ["SGLang's extend"] * LAYERS
    mixed = served("switchrail", "triton")
    assert [each[-1] for each in passed(mixed, "decode", [1], [1])] == ["SGLang's decode"] * LAYERS
    assert passed(mixed, "extend", [3], [1])[0][-1].shape == (1, 3, HV, V)
    assert [each[-1] for each in passed(mixed, "verify", [3], [1])] == ["SGLang's extend"] * LAYERS
    drafts = served("switchrail", "triton", drafts=(3, 1))
    assert [each[-1] for each in passed(drafts, "verify", [3], [1])] == ["SGLang's extend"] * LAYERS


TREES = [[-1, 0, 0, 1, 1, 2], [-1, 0, 1, 2, 3, 4], [-1, 0, 0, 0, 2, 4]]


def links(trees):
    """SGLang's links between the tokens of trees: the first child and the next sibling."""
    children, siblings = torch.full((2, len(trees), len(trees[0])), -1)
    for n, parents in enumerate(trees):
        for i in range(len(parents)):
            children[n, i] = next((j for j, parent in enumerate(parents) if parent == i), -1)
            siblings[n, i] = next(
                (j for j, parent in enumerate(parents) if j > i and parent == parents[i] >= 0), -1
            )
    return children, siblings


def check_drafts(served, found, before, trees, slots):
    """Compare each row's result and states with the recurrence along its path; live states stay the same."""
    assert torch.equal(served.pools.conv, before.conv)
    assert torch.equal(served.pools.temporal, before.temporal)
    count = len(trees[0])
    for i, (module, (mixed, a, b, got)) in enumerate(zip(served.model.layers, found, strict=True)):
        for n, (parents, slot) in enumerate(zip(trees, slots, strict=True)):
            if slot <= 0:
                continue
            for row in range(count):
                path = [row]
                while parents[path[0]] >= 0:
                    path.insert(0, parents[path[0]])
                own = [n * count + each for each in path]
                out, conv, state = expected(
                    module, mixed[own], a[own], b[own], before.conv[i, slot], before.temporal[i, slot]
                )
                torch.testing.assert_close(got[0, own[-1]].double(), out[-1], rtol=1e-4, atol=1e-5)
                torch.testing.assert_close(
                    served.pools.conv_rows[i, n, row].double(), conv, rtol=1e-5, atol=1e-6
                )
                torch.testing.assert_close(served.pools.rows[i, n, row].double(), state, rtol=1e-4, atol=1e-5)


def test_parents_of_trees(runtime):
    drafts = import_module("switchrail.bridges.sglang.drafts")
    assert drafts.parents_of(*links(TREES)).tolist() == [*TREES[0], *TREES[1], *TREES[2]]


@pytest.mark.parametrize(
    ("version", "name", "family", "tree"),
    [
        ("v23", "switchrail:torch", "gated_delta", False),
        ("v23", "switchrail:torch", "gated_delta", True),
        ("v23", "switchrail:interpreted", "gated_delta", True),
        ("v23", "switchrail:torch", "kda", True),
        ("v11", "switchrail:torch", "gated_delta", True),
    ],
    indirect=["version"],
)
def test_drafts_are_verified_with_states_by_row(served, version, name, family, tree):
    torch.manual_seed(3)
    made = served(name, name, family=family, drafts=(6, 4 if tree else 1))
    made.pools.own.normal_()
    made.pools.temporal.normal_()
    trees = TREES if tree else [TREES[1]] * 3
    before = copy(made.pools)
    slots = [5, 0, 2]  # slot 0 is padding
    found = passed(made, "verify", [6] * 3, slots, links=links(trees) if tree else (None, None))
    check_drafts(made, found, before, trees, slots)
    served_layers = made.backend.switchrail
    served_layers.steps.end()
    assert served_layers.steps.bypassed == 0
    bound = served_layers.steps.dispatchers["verify"].bound
    chosen = {each for _, op, _, each in bound.plan.table if op == family}
    assert len(chosen) == 1
    if version == "v23":  # 0.5.11 has no option for drafts, so the core decides
        assert chosen == {name.split(":")[1]}


def test_in_the_draft_worker_the_drafts_layers_count(served):
    """A draft without linear layers needs no backend for them, although the target has some."""
    made = served("switchrail:plain", "switchrail:plain", drafts=(6, 4), draft_model=nn.ModuleList())
    served_layers = made.backend.switchrail
    assert not served_layers.steps.dispatchers["decode"].bound.plan.table
    assert "verify" not in served_layers.steps.dispatchers
    for mode in ("extend", "verify"):
        passed(made, mode, [6], [1], [0])
    assert served_layers.steps.bypassed == 0


def test_a_model_without_layers_that_the_bridge_knows_is_refused(served, monkeypatch):
    monkeypatch.setattr(Model, "modules", lambda self: iter(()))
    with pytest.raises(BridgeError, match="Model has no gated_delta layers that Switchrail knows"):
        served()


def test_a_platforms_default_leaves_unknown_layers_to_sglang(served, runtime, monkeypatch, caplog):
    runtime.use_platform(VendorsPlatform())
    monkeypatch.setattr(Model, "modules", lambda self: iter(()))
    assert served().backend.switchrail is None
    assert "Model has no gated_delta layers that Switchrail knows" in caplog.text
    with pytest.raises(BridgeError, match="Model has no gated_delta layers that Switchrail knows"):
        served("switchrail:torch")


@pytest.mark.parametrize("version", ["v11"], indirect=True)
@pytest.mark.parametrize(
    ("module", "backend"),
    [
        ("hybrid_linear_attn_backend", "Mamba2AttnBackend"),
        ("linear.kda_backend", "KDAAttnBackend"),
        ("linear.lightning_backend", "LightningAttentionBackend"),
    ],
)
def test_layers_that_the_version_does_not_serve_are_refused(runtime, caplog, module, backend):
    """SGLang 0.5.11 ignores the names of linear backends for Mamba2 layers, for example."""
    utils = import_module(f"{LINEAR}.utils")
    backend = getattr(import_module(f"sglang.srt.layers.attention.{module}"), backend)
    runner = SimpleNamespace(model=Model("gated_delta"))
    utils.CHOSEN.update(decode=enum()("triton"), prefill=enum()("triton"))
    assert backend(runner).made
    utils.CHOSEN.update(prefill=enum()("switchrail"))
    with pytest.raises(BridgeError, match="does not serve Model's layers with states in this version"):
        backend(runner)
    runtime.use_platform(VendorsPlatform())
    assert backend(runner).made
    assert "SGLang's own kernels serve them" in caplog.text


@only_v23
def test_our_prompts_before_sglangs_fused_verification_are_refused(served):
    """SGLang's fused verification reads states that only SGLang's kernels for prompts write."""
    pool = torch.ones(9, dtype=torch.int32)
    made = partial(served, family="kda", drafts=(6, 1), accept_lens_pool=pool)
    with pytest.raises(BridgeError, match="--linear-attn-verify-backend"):
        made("switchrail:torch", "triton", verify="triton")
    assert made("triton", "triton", verify="triton").backend.switchrail is None


def test_ngram_drafts_whose_states_sglang_does_not_update(served, version):
    """SGLang 0.5.11 does not update states after n-gram drafts, even with its own kernels."""
    made = partial(served, drafts=(4, 1), algorithm="NGRAM")
    if version == "v23":
        assert made().backend.switchrail is not None
    else:
        with pytest.raises(BridgeError, match="does not update the states of linear layers after NGRAM"):
            made()
    assert made("triton", "triton").backend.switchrail is None


def test_a_layer_that_takes_another_path_is_counted(served, caplog):
    made = served()
    found = made.model.layers
    made.model.layers = found[:1]
    passed(made, "decode", [1], [1])
    made.model.layers = found
    passed(made, "decode", [1], [1])
    assert made.backend.switchrail.steps.bypassed == 1
    assert "layer 2 did not run its gated_delta" in caplog.text


def test_a_pass_without_any_call_is_counted(served, caplog):
    made = served()
    found = made.model.layers
    made.model.layers = nn.ModuleList()
    passed(made, "decode", [1], [1])
    made.model.layers = found
    passed(made, "decode", [1], [1])
    made.backend.switchrail.steps.end()
    assert made.backend.switchrail.steps.bypassed == 1
    assert "no layer was called in a pass" in caplog.text


@pytest.mark.parametrize("name", ["switchrail:recorded", "switchrail:interpreted"])
def test_a_recorded_pass_is_repeated_with_other_slots(served, version, name):
    """Without a GPU, nothing is recorded: the pass runs again on SGLang's tables, which have new contents."""
    made = served(name, name)
    made.pools.temporal.normal_()
    backend = made.backend
    slots = torch.tensor([5, 2], dtype=torch.int32)
    starts = torch.arange(3, dtype=torch.int32)
    backend.recorded[2] = SimpleNamespace(query_start_loc=starts, mamba_cache_indices=slots)
    batch = SimpleNamespace(forward_mode=Mode("decode"), batch_size=2)

    def prepare(capture):
        if version == "v23":
            backend.init_forward_metadata_out_graph(batch, in_capture=capture)
        elif capture:
            backend.init_forward_metadata_capture_cuda_graph(2, 2, None, None, None, batch.forward_mode, None)
        else:
            backend.init_forward_metadata_replay_cuda_graph(
                2, None, None, 0, None, batch.forward_mode, None, None
            )

    def run(rows):
        before, found = copy(made.pools), []
        for module in made.model.layers:
            mixed, (a, b) = torch.randn(2, CHANNELS), torch.randn(2, 2, HV)
            found.append((mixed, a, b, backend.forward_decode(module, batch, mixed, a, b)))
        check(made, found, before, [1, 1], rows)

    prepare(capture=True)
    run([5, 2])
    run([5, 2])
    slots.copy_(torch.tensor([3, 4]))
    prepare(capture=False)
    run([3, 4])
    slots[1] = -1  # padding, for which SGLang's starts have no row
    starts[2] = 1
    prepare(capture=False)
    before, found = copy(made.pools), []
    for module in made.model.layers:
        mixed, (a, b) = torch.randn(2, CHANNELS), torch.randn(2, 2, HV)
        out = backend.forward_decode(module, batch, mixed, a, b)
        assert not out[:, 1].any()
        found.append((mixed[:1], a[:1], b[:1], out[:, :1]))
    check(made, found, before, [1], [3])


@only_v23
@pytest.mark.parametrize("name", ["switchrail:recorded", "switchrail:interpreted"])
def test_a_recorded_verification_is_repeated_with_other_trees(served, name):
    """Without a GPU, the pass runs again on tables with other slots and trees. The last slot is padding."""
    torch.manual_seed(6)
    made = served(name, name, drafts=(6, 4))
    made.pools.own.normal_()
    made.pools.temporal.normal_()
    backend = made.backend
    slots = torch.tensor([5, 2, -1], dtype=torch.int32)
    children, siblings = links(TREES)
    backend.recorded[3] = SimpleNamespace(
        query_start_loc=torch.tensor([0, 6, 12, 12], dtype=torch.int32),
        mamba_cache_indices=slots,
        retrieve_next_token=children,
        retrieve_next_sibling=siblings,
    )
    batch = SimpleNamespace(forward_mode=Mode("verify"), batch_size=3)

    def run(trees, rows):
        before, found = copy(made.pools), []
        for module in made.model.layers:
            mixed, (a, b) = torch.randn(18, CHANNELS), torch.randn(2, 18, HV)
            found.append((mixed, a, b, backend.forward_extend(module, batch, mixed, a, b)))
        check_drafts(made, found, before, trees, rows)

    backend.init_forward_metadata_out_graph(batch, in_capture=True)
    run(TREES, [5, 2, -1])
    slots.copy_(torch.tensor([3, 4, -1]))
    for table, new in zip((children, siblings), links(TREES[::-1]), strict=True):
        table.copy_(new)
    backend.init_forward_metadata_out_graph(batch)
    run(TREES[::-1], [3, 4, -1])
    for table, new in zip((children, siblings), links(TREES), strict=True):
        table.copy_(new)
    backend.update_verify_buffers_to_fill_after_draft(None, 3)  # the pass was planned before its drafts
    run(TREES, [3, 4, -1])


def test_a_repeated_pass_is_a_new_step(served):
    made = served()
    passed(made, "decode", [1], [1])
    served_layers = made.backend.switchrail
    module, batch = made.model.layers[0], SimpleNamespace(forward_mode=Mode("decode"))
    made.backend.forward_decode(
        module, batch, torch.randn(1, CHANNELS), torch.randn(1, HV), torch.randn(1, HV)
    )
    assert served_layers.steps.bypassed == 0


def test_only_captured_phases_need_backends_for_graphs(served, monkeypatch):
    monkeypatch.setattr(routes, "captures", lambda places, model_runner: True)
    made = served("switchrail:torch", "switchrail:interpreted")
    dispatchers = made.backend.switchrail.steps.dispatchers
    chosen = {(phase, one) for each in dispatchers.values() for _, _, phase, one in each.bound.plan.table}
    assert {("prefill", "torch"), ("decode", "interpreted")} <= chosen
    for mode, rows, slots, prefixes in (("extend", [3, 1], [2, 5], [0, 8]), ("decode", [1, 1], [5, 2], None)):
        before = copy(made.pools)
        check(made, passed(made, mode, rows, slots, prefixes), before, rows, slots, prefixes)
    with pytest.raises(BackendUnfitError, match="cuda_graph"):
        served("switchrail:interpreted", "switchrail:torch")


def test_which_servers_capture_decode_steps(sglang, version):
    sglang(version)
    places = version_of("0.5.23" if version == "v23" else "0.5.11")

    def captures(device="cuda", backend="full", disabled=False):
        if version == "v23":
            options = import_module("sglang.srt.runtime_context").OPTIONS
            options["cuda_graph_backend_decode"] = "disabled" if disabled else backend
        arguments = SimpleNamespace(disable_cuda_graph=disabled and version == "v11")
        return routes.captures(places, SimpleNamespace(device=device, server_args=arguments))

    assert captures()
    assert not captures("cpu")
    assert not captures(disabled=True)
    if version == "v23":
        assert captures(backend="breakable")


@only_v23
def test_a_chosen_backend_that_does_not_fit_is_refused_at_the_start(served, runtime):
    runtime.register(
        "elsewhere", "tests.sglang_bridge.kernels:PlainGatedDelta", op="gated_delta", devices=("cuda",)
    )
    names.offer(runtime, version_of("0.5.23"), ExitStack())
    with pytest.raises(BackendUnfitError, match=r"elsewhere.*cuda"):
        served("switchrail:elsewhere", "switchrail:elsewhere")


def test_a_layer_that_no_backend_can_take_is_refused_at_the_start(served, monkeypatch):
    monkeypatch.setattr(
        Pools,
        "mamba2_layer_cache",
        lambda self, id: SimpleNamespace(
            conv=[self.conv[id // 2].bfloat16()], temporal=self.temporal[id // 2]
        ),
    )
    with pytest.raises(ContractError, match="short_conv: state: got dtype bfloat16"):
        served()


def allocations(run, *arguments):
    """The bytes that torch allocates in a call."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run(*arguments)
    # `seen.events()` takes ten times as long as the call
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    return sum(max(each.nbytes(), 0) for each in events)


@pytest.mark.parametrize(
    ("mode", "rows", "name"),
    [
        ("extend", [3, 4], "switchrail:plain"),
        ("decode", [1, 1], "switchrail:plain"),
        ("verify", [6, 6], "switchrail:torch"),
    ],
)
def test_larger_pools_change_no_allocation(served, mode, rows, name):
    drafts = (6, 1) if mode == "verify" else None
    small, large = (served(name, name, slots=slots, drafts=drafts) for slots in (8, 16))
    for each in (small, large):
        passed(each, mode, rows, [1, 2])
    counts = [allocations(passed, each, mode, rows, [1, 2]) for each in (small, large)]
    assert counts[0] == counts[1] > 0
