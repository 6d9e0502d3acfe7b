"""The engine's calls of a platform's methods, and of its functions for operations."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import switchrail
import torch
from switchrail import Engine, Platform, SamplingParams
from switchrail.engine.memory import Pools
from switchrail.engine.options import options_on
from switchrail.errors import NotProvidedError, PlatformError, RegistrationError, UnknownDtypeError
from switchrail.platforms import (
    OPERATIONS,
    CpuHardware,
    CpuPlatform,
    CpuServing,
    CudaServing,
    Hardware,
    Serving,
)
from switchrail.platforms.operations import ChooseTokens, Experts, GatedRMSNorm, RMSNorm, Rotary, SiluAndMul
from switchrail.platforms.serving import Forward
from switchrail.pools import ConvShape, KVShape, LatentPool, LatentShape
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_next import modeling_qwen3_next as modelling

from .conftest import CHECKPOINT

PARAMS = SamplingParams(max_new_tokens=6, ignore_eos=True)
PROMPTS = ["In the beginning", "x"]


def methods(cls: type) -> set[str]:
    return {name for name, _ in inspect.getmembers(cls, inspect.isfunction) if not name.startswith("_")}


def recording(cls: type, calls: Counter[str]) -> type:
    """A subclass that counts the calls of its public methods."""

    def counting(name: str) -> Any:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return getattr(super(recorded, self), name)(*args, **kwargs)

        return method

    recorded = type(cls.__name__, (cls,), {name: counting(name) for name in methods(cls)})
    return recorded


class Recording(Platform):
    """The CPU platform, with parts that count the calls of their methods."""

    def __init__(self, device: str | None = None) -> None:
        self.of_serving: Counter[str] = Counter()
        self.of_hardware: Counter[str] = Counter()
        hardware, serving = recording(CpuHardware, self.of_hardware), recording(CpuServing, self.of_serving)
        type(self).hardware_class, type(self).serving_class = hardware, serving  # type: ignore[misc]
        super().__init__(device)


def test_the_engine_calls_every_method(runtime: switchrail.Runtime) -> None:
    platform = Recording()
    runtime.use_platform(platform)
    for _ in range(2):
        with Engine(CHECKPOINT, runtime=runtime, options={"seed": 1}) as engine:
            engine.generate(PROMPTS, PARAMS)
            steps = engine.stats.steps
    # the first is for registering functions, the others are for the option `compile`
    own = {"register_oot_forward", "compile_backend", "compiles"}
    assert set(platform.of_serving) == methods(Serving) - own
    # Only process groups need `distributed_backend`. `identity`, read below, calls the other two methods.
    elsewhere = {"distributed_backend", "name", "support_piecewise_cuda_graph"}
    assert methods(Hardware) - set(platform.of_hardware) == elsewhere | {
        "set_device"
    }  # the only device is current
    assert platform.identity
    assert methods(Hardware) - set(platform.of_hardware) == {"distributed_backend", "set_device"}
    assert platform.of_serving["initialize"] == 1
    assert platform.of_serving["after_weights_loaded"] == 2
    assert platform.of_serving["default_backend"] == 2 * 3 * 2  # engines, ops, phases
    assert platform.of_hardware["active"] == 2 * (1 + steps)  # when the engine is created, and in each step
    assert platform.of_hardware["empty_cache"] == 2 * 2  # before memory sizes are determined, and at the end


def test_work_is_launched_on_the_engines_device(runtime: switchrail.Runtime) -> None:
    """A step runs on the engine's device, and leaves the thread's current device unchanged."""
    log, seen = [], []
    current = ["other:0"]

    class Elsewhere(CpuHardware):
        def get_device(self) -> str:
            return current[0]

        def set_device(self, device: str) -> None:
            log.append(device)
            current[0] = device

    class ElsewhereServing(CpuServing):
        def after_weights_loaded(self, model: Any) -> None:
            seen.append(current[0])

        def state_pool_class(self) -> Any:
            seen.append(current[0])
            return super().state_pool_class()

    class ElsewherePlatform(CpuPlatform):
        hardware_class, serving_class = Elsewhere, ElsewhereServing

    def choose_tokens(logits: Any, params: Any, draws: Any) -> torch.Tensor:
        seen.append(current[0])
        return torch.full((len(params),), 41)

    platform = ElsewherePlatform()
    platform.serving.register_oot_forward(ChooseTokens.name, choose_tokens)
    runtime.use_platform(platform)
    with Engine(CHECKPOINT, runtime=runtime) as engine:
        assert log == ["cpu", "other:0"]
        engine.generate(PROMPTS, PARAMS)
        assert log == ["cpu", "other:0"] * (1 + engine.stats.steps)
        assert seen == ["cpu"] * (2 + engine.stats.steps)


def serving_platform(**members: Any) -> Platform:
    """The CPU platform with other members in its serving part."""
    return type("Made", (CpuPlatform,), {"serving_class": type("Made", (CpuServing,), members)})()


def test_a_failed_initialisation_is_tried_again(runtime: switchrail.Runtime) -> None:
    calls = []

    def initialize(self: Serving) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("not yet")

    platform = serving_platform(initialize=initialize)
    with pytest.raises(OSError, match="not yet"):
        Engine(CHECKPOINT, runtime=runtime, device=platform)
    for _ in range(2):
        Engine(CHECKPOINT, runtime=runtime, device=platform).close()
    assert len(calls) == 2


def test_changes_of_loaded_weights_take_effect(runtime: switchrail.Runtime) -> None:
    def after_weights_loaded(self: Serving, model: Any) -> None:
        assert next(model.parameters()).device.type == "cpu"
        model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight), requires_grad=False)

    platform = serving_platform(after_weights_loaded=after_weights_loaded)
    with Engine(CHECKPOINT, runtime=runtime, device=platform) as engine:
        assert set(engine.generate(PROMPTS, PARAMS)[0].tokens) == {0}


def test_backends_may_draw_from_the_seeded_generator(runtime: switchrail.Runtime) -> None:
    drawn = []
    for seed in (5, 5, 6):
        with Engine(CHECKPOINT, runtime=runtime, device="cpu", options={"seed": seed}):
            drawn.append(torch.initial_seed())
    assert drawn == [5, 5, 6]


def test_the_default_page_size_on_cuda() -> None:
    class OnTheHost(CpuPlatform):
        serving_class = CudaServing

    assert options_on(OnTheHost(), None).page_size == 64
    assert options_on(OnTheHost(), {"page_size": 16}).page_size == 16


def test_an_engine_default_of_none_has_no_effect(runtime: switchrail.Runtime) -> None:
    platform = serving_platform(engine_defaults=lambda self: {"page_size": None, "max_sequences": 3})
    with Engine(CHECKPOINT, runtime=runtime, device=platform) as engine:
        assert (engine.options.page_size, engine.options.max_sequences) == (16, 3)


@pytest.mark.parametrize(
    ("members", "words"),
    [
        (
            {"kv_pool_class": lambda self, kind: LatentPool},
            r"gives <class .*LatentPool'> for kv_pool_class\('mha'\); valid: .*MultiHeadPool",
        ),
        ({"state_pool_class": lambda self: None}, r"gives None for state_pool_class\(\); valid: .*StatePool"),
        ({"paged_allocator_class": lambda self: list}, r"for paged_allocator_class\(\); valid: .*FreeList"),
        (
            {"engine_defaults": lambda self: {"page_sise": 3}},
            "engine defaults of platform 'cpu' are wrong.*page_size",
        ),
        (
            {"engine_defaults": lambda self: {"page_size": 0}},
            "engine defaults .* page_size must be an integer",
        ),
        (
            {"engine_defaults": lambda self: switchrail.EngineOptions()},
            r"gives EngineOptions\(.* for engine_defaults\(\); valid: a mapping",
        ),
        (
            {"default_backend": lambda self, op, phase: 5},
            r"gives 5 for default_backend\('attention', 'prefill'\); valid: the name of a backend, or None",
        ),
        ({"dispatch_key": lambda self: None}, r"gives None for dispatch_key\(\); valid: the part after"),
        ({"dispatch_key": lambda self: "a-b"}, r"gives 'a-b' for dispatch_key\(\)"),
    ],
)
def test_a_platforms_values_are_checked(
    members: dict[str, Any], words: str, runtime: switchrail.Runtime
) -> None:
    with pytest.raises(PlatformError, match=words):
        Engine(CHECKPOINT, runtime=runtime, device=serving_platform(**members))


def test_a_device_that_does_not_provide_what_the_engine_needs(runtime: switchrail.Runtime) -> None:
    class Bare(Hardware):
        kind = "cpu"

    platform = type("BarePlatform", (Platform,), {"hardware_class": Bare})()
    with pytest.raises(NotProvidedError, match=r"'cpu' .*Bare.* does not provide 'supported_dtypes'"):
        Engine(CHECKPOINT, runtime=runtime, device=platform)


def test_a_dtype_that_the_device_does_not_compute_in(runtime: switchrail.Runtime) -> None:
    class Old(CpuHardware):
        def supported_dtypes(self) -> tuple[str, ...]:
            return ("float32", "float16")

    platform = type("OldPlatform", (CpuPlatform,), {"hardware_class": Old})()
    with pytest.raises(
        UnknownDtypeError, match=r"cpu does not compute in bfloat16; .*valid: float32, float16$"
    ):
        Engine(CHECKPOINT, runtime=runtime, device=platform, dtype="bfloat16")


def test_dtypes_that_are_no_names(runtime: switchrail.Runtime) -> None:
    class Wrong(CpuHardware):
        def supported_dtypes(self) -> Any:
            return (torch.float32,)

    platform = type("WrongPlatform", (CpuPlatform,), {"hardware_class": Wrong})()
    with pytest.raises(
        PlatformError,
        match=r"'cpu' gives \(torch.float32,\) for supported_dtypes\(\); valid: names, .* one of 'float32'",
    ):
        Engine(CHECKPOINT, runtime=runtime, device=platform)


def make_pools(platform: Platform, shapes: dict[tuple[int, str], Any]) -> Pools:
    return Pools(
        shapes,
        switchrail.EngineOptions(num_pages=5, page_size=4, max_sequences=2),
        platform=platform,
        max_length=64,
        dtype=torch.float32,
        state_dtype=torch.float32,
    )


def test_pool_classes_are_chosen_by_the_kinds_of_the_layers() -> None:
    platform = Recording()
    asked = []
    find = platform.serving.kv_pool_class
    platform.serving.kv_pool_class = lambda kind: asked.append(kind) or find(kind)  # type: ignore[method-assign, func-returns-value]
    latent, plain = LatentShape(latent=12, rotary=4), KVShape(heads=2, size=8)
    assert set(make_pools(platform, {(0, "mla"): latent, (2, "mla"): latent}).kv) == {"mla"}
    assert asked == ["mla"]
    assert set(make_pools(platform, {(0, "mla"): latent, (1, "attention"): plain}).kv) == {"mla", "mha"}
    assert asked == ["mla", "mla", "mha"]
    assert make_pools(platform, {(0, "short_conv"): ConvShape(channels=3, width=4)}).kv == {}
    assert asked == ["mla", "mla", "mha"]


# --- operations


def model_forwards(model: Any) -> dict[type, tuple[Any, tuple[Any, ...]]]:
    """For each operation, a module of the model that runs it, and arguments for the module's forward."""
    torch.manual_seed(0)
    layers = model.model.layers
    gated = layers[0].linear_attn.norm
    mlp = next(part for part in model.modules() if isinstance(part, modelling.Qwen3NextMLP))
    sparse = next(part for part in model.modules() if isinstance(part, modelling.Qwen3NextSparseMoeBlock))
    return {
        RMSNorm: (layers[0].input_layernorm, (torch.randn(1, 5, model.config.hidden_size),)),
        GatedRMSNorm: (gated, (torch.randn(7, gated.weight.shape[0]), torch.randn(7, gated.weight.shape[0]))),
        Rotary: (model.model.rotary_emb, (torch.randn(1, 5, 3), torch.arange(5).unsqueeze(0))),
        SiluAndMul: (mlp, (torch.randn(5, model.config.hidden_size),)),
        Experts: (sparse, (torch.randn(1, 5, model.config.hidden_size),)),
    }


def rms_norm(x: torch.Tensor, weight: torch.Tensor, *, eps: float, weight_offset: float) -> torch.Tensor:
    scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)
    return (x.float() * scale * (weight_offset + weight.float())).type_as(x)


def gated_rms_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    scaled = (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)).type_as(x)
    return (weight * scaled * torch.nn.functional.silu(gate.float())).type_as(x)


def rotary(position_ids: torch.Tensor, inv_freq: torch.Tensor, *, scaling: float, dtype: torch.dtype) -> Any:
    angles = (position_ids.unsqueeze(-1) * inv_freq.float()).repeat(1, 1, 2)
    return (angles.cos() * scaling).to(dtype), (angles.sin() * scaling).to(dtype)


def silu_and_mul(gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(gate) * up


def experts(
    x: torch.Tensor, logits: torch.Tensor, gate_up: torch.Tensor, down: torch.Tensor, **options: Any
) -> torch.Tensor:
    own = len(gate_up) - options["shared"]
    found, chosen = logits[:, :own].float().softmax(-1).topk(options["top_k"])
    found = found / found.sum(-1, keepdim=True) if options["normalize"] else found
    weights = torch.zeros(len(x), own).scatter(1, chosen, found)
    weights = torch.cat([weights, logits[:, own:].float().sigmoid()], 1)
    if options["rows"] is not None:
        weights = weights * (torch.arange(len(x)) < options["rows"])[:, None]
    gate, up = torch.einsum("th,enh->ten", x, gate_up).chunk(2, -1)
    each = torch.einsum("ten,ehn->teh", torch.nn.functional.silu(gate) * up, down)
    return (weights[:, :, None] * each).sum(1).type_as(x)


FORWARDS: dict[type, Forward] = {
    RMSNorm: rms_norm,
    GatedRMSNorm: gated_rms_norm,
    Rotary: rotary,
    SiluAndMul: silu_and_mul,
    Experts: experts,
}


@pytest.fixture(scope="module")
def plain() -> Any:
    return AutoModelForCausalLM.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()


@pytest.fixture
def make_engine(runtime: switchrail.Runtime, request: pytest.FixtureRequest) -> Callable[..., Engine]:
    def make(platform: Platform, **arguments: Any) -> Engine:
        engine = Engine(CHECKPOINT, runtime=runtime, device=platform, **arguments)
        request.addfinalizer(engine.close)
        return engine

    return make


@pytest.mark.parametrize("operation", FORWARDS, ids=lambda operation: operation.name)
@torch.inference_mode()
def test_an_operation_is_called_as_documented(
    operation: type[Any], plain: Any, make_engine: Callable[..., Engine]
) -> None:
    """A function that follows the operation's documentation gives the results of transformers."""
    platform = serving_platform()
    calls = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return FORWARDS[operation](*args, **kwargs)

    platform.serving.register_oot_forward(operation.name, counted)
    engine = make_engine(platform)
    expected = make_engine(CpuPlatform()).generate(PROMPTS, PARAMS)
    module, arguments = model_forwards(engine._runner.model)[operation]
    own, _ = model_forwards(plain)[operation]
    torch.testing.assert_close(module(*arguments), own(*arguments), rtol=1e-6, atol=1e-6)
    assert len(calls) == 1, "transformers' own model doesn't call it"
    outputs = engine.generate(PROMPTS, PARAMS)
    modules = sum(type(part) is type(own) for part in plain.modules())
    assert len(calls) == 1 + modules * engine.stats.steps
    assert [output.tokens for output in outputs] == [output.tokens for output in expected]


def test_the_function_for_token_choice(make_engine: Callable[..., Engine]) -> None:
    platform = serving_platform()
    platform.serving.register_oot_forward(
        ChooseTokens.name, lambda logits, params, draws: torch.full((len(params),), 41)
    )
    assert make_engine(platform).generate(PROMPTS, PARAMS)[0].tokens == (41,) * 6


def test_which_function_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(x: torch.Tensor, weight: torch.Tensor, **rest: float) -> torch.Tensor:
        return x

    monkeypatch.setattr(RMSNorm, "forward_acme", rms_norm, raising=False)
    serving = serving_platform(dispatch_key=lambda self: "acme").serving
    assert serving.forward_of(GatedRMSNorm) is None
    assert serving.forward_of(RMSNorm) is rms_norm
    serving.register_oot_forward("rms_norm", another)
    assert serving.forward_of(RMSNorm) is another
    assert CpuPlatform().serving.forward_of(RMSNorm) is None
    assert CpuPlatform().serving.forward_of(SiluAndMul) is SiluAndMul.forward_cpu
    assert type("Acme", (CpuHardware,), {"kind": "oot:acme"})().kind == "oot:acme"
    assert Serving(type("Acme", (CpuHardware,), {"kind": "oot:acme"})()).dispatch_key() == "acme"
    assert Serving(type("Acme", (CpuHardware,), {"kind": "oot:acme-x.1"})()).dispatch_key() == "acme_x_1"
    serving.register_oot_forward("rms_norm", another)  # as after a second initialisation
    with pytest.raises(RegistrationError, match=r"'rms_norm' is served by .*another.*override=True"):
        serving.register_oot_forward("rms_norm", rms_norm)
    serving.register_oot_forward("rms_norm", rms_norm, override=True)
    assert serving.forward_of(RMSNorm) is rms_norm


def test_unknown_operations() -> None:
    serving = serving_platform().serving
    with pytest.raises(RegistrationError, match="no operation 'rmsnorm'; nearest: rms_norm") as caught:
        serving.register_oot_forward("rmsnorm", rms_norm)
    assert caught.value.valid == tuple(OPERATIONS)
    with pytest.raises(RegistrationError, match="3 can't serve operation 'rotary'; valid: a function"):
        serving.register_oot_forward("rotary", 3)  # type: ignore[arg-type]


def test_silu_and_mul_is_right_on_a_cpu() -> None:
    gate, up = torch.randn(2, 5, 7).unbind(0)
    expected = silu_and_mul(gate, up)
    assert torch.equal(SiluAndMul.forward_cpu(gate, up), expected)


def test_others_hooks_stay_around_a_platforms_function(
    runtime: switchrail.Runtime, make_engine: Callable[..., Engine]
) -> None:
    seen = []
    before = modelling.Qwen3NextMLP.forward.__code__
    engine = make_engine(CpuPlatform())  # its function for SiluAndMul replaces the forward of Qwen3NextMLP

    def around(original: Forward, module: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append(x.shape)
        return original(module, x)

    hook = runtime.hooks.add(f"{modelling.__name__}.Qwen3NextMLP.forward", around, "around")
    engine.generate(PROMPTS, PARAMS)
    modules = sum(isinstance(part, modelling.Qwen3NextMLP) for part in engine._runner.model.modules())
    assert len(seen) == modules * engine.stats.steps > 0
    engine.close()
    runtime.hooks.remove(hook)
    assert modelling.Qwen3NextMLP.forward.__code__ is before


def test_a_module_that_does_something_else_keeps_its_forward(
    make_engine: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    def after_weights_loaded(self: Serving, model: Any) -> None:
        for part in model.modules():
            if isinstance(part, modelling.Qwen3NextRMSNormGated):
                part.activation = "gelu"

    calls = []
    platform = serving_platform(after_weights_loaded=after_weights_loaded)
    platform.serving.register_oot_forward("gated_rms_norm", lambda *args, **kwargs: calls.append(1))
    make_engine(platform).generate(PROMPTS, PARAMS)
    assert calls == []
