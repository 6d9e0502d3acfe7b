"""Serves a loaded transformers model through Switchrail's dispatch.

As in Switchrail's engine, the model's forward gets packed tokens: all sequences in one row, without padding,
cache or mask. So each layer runs in the same way in all phases, and the engine's hooks can serve it. Results
are converted back to transformers' shapes. transformers still runs norms, projections, experts and sampling.
"""

from __future__ import annotations

import inspect
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from operator import attrgetter
from typing import Any, Final, NoReturn

import torch
import transformers
from torch import nn
from torch.utils.hooks import RemovableHandle
from transformers import DynamicCache

from switchrail._core import BoundPlan, Layout, RoutePlan
from switchrail.bridges.transformers.attention import ServedConfig, implementation_changed, served_config
from switchrail.bridges.transformers.cache import ServedCache, adopt
from switchrail.bridges.transformers.call import Call
from switchrail.bridges.transformers.explain import explain
from switchrail.bridges.transformers.memory import Memory, Model
from switchrail.current import current_runtime
from switchrail.engine.dtypes import choose_dtype
from switchrail.engine.models.binding import check_shapes, find_mixers, read_shapes
from switchrail.engine.models.contract import KEYWORD
from switchrail.engine.models.families import FAMILIES, Family, family_of
from switchrail.engine.options import options_on
from switchrail.engine.routes import plan_routes
from switchrail.engine.watch import ENGINE
from switchrail.errors import BridgeError
from switchrail.hooks import Hooks
from switchrail.hosts import HOSTS, release
from switchrail.nearest import nearest
from switchrail.runtime import Runtime

_ATTRIBUTE: Final = "_switchrail_bridge"

_FURTHER: Final = 128
"""Tokens per sequence for which a new cache allocates memory, in addition to those of its first call."""


def use(
    model: nn.Module,
    *,
    runtime: Runtime | None = None,
    backends: Mapping[str, str] | None = None,
    page_size: int | None = None,
    state_dtype: str = "float32",
) -> Handle:
    """Serves the attention and linear layers of a loaded model through Switchrail's dispatch.

    `model.generate` and calls of the model still work: with padding, beams, sampling, and a `DynamicCache` or
    no cache. The first call with a cache converts the cache, whose keys, values and states are then in
    Switchrail's memory.

    Example:
        >>> import switchrail.bridges.transformers as sr
        >>> handle = sr.use(model)  # doctest: +SKIP
        >>> handle.remove()  # doctest: +SKIP

    Args:
        model: A causal language model of transformers, with its head, in eval mode on one device.
        runtime: The runtime with the backends; None for the current one, with the installed plugins loaded.
        backends: Chosen backends, as for `Engine`.
        page_size: Tokens per page of keys and values; None for the platform's default.
        state_dtype: The dtype of recurrent states.

    Returns:
        A handle, which has the routes and can remove the bridge.

    Raises:
        BridgeError: The model is already served, in training mode, on several devices, or of a type that
            Switchrail does not serve in this version of transformers.
        SwitchrailError: As for `Engine`: an unknown backend, no backend that can serve a layer, and so on.
    """
    if runtime is None:
        runtime = current_runtime()
        runtime.load()
    return Handle(model, runtime, backends, {"page_size": page_size, "state_dtype": state_dtype})


class Handle(AbstractContextManager["Handle"]):
    """A served model. Leaving the context removes the bridge.

    Attributes:
        plan: The route plan.
        bound: The plan's backends.
        eager: The method `forward`, wrapped so that torch.compile does not trace it.
    """

    def __init__(
        self,
        model: nn.Module,
        runtime: Runtime,
        backends: Mapping[str, str] | None,
        options: Mapping[str, Any],
    ) -> None:
        """See `use`."""
        family = _family_of(model, runtime)
        config: Any = model.config
        device, dtype = _checked(model)
        platform = runtime.find_platform(device)
        choose_dtype(dtype, {}, platform.hardware)
        layout = _layout(runtime, config)
        mixers = find_mixers(model, family, layout.layers)
        check_shapes(mixers, layout)
        chosen = options_on(platform, {name: value for name, value in options.items() if value is not None})
        self.plan: RoutePlan = plan_routes(
            runtime,
            layout,
            platform=platform,
            dtype=str(dtype),
            page_size=chosen.page_size,
            state_dtype=chosen.state_dtype,
            preferences=backends,
        )
        self.bound: BoundPlan = runtime.bind(self.plan)
        self._model = Model(
            mixers=mixers,
            shapes=read_shapes(mixers),
            bound=self.bound,
            platform=platform,
            options=chosen,
            dtype=dtype,
        )
        path = family.layers.rpartition(".")[0]
        self._base: Any = attrgetter(path)(model) if path else model
        self._served_as = _dtype_and_device(self._base)
        self._family = family
        if self._base.__dict__.get(_ATTRIBUTE) is not None:
            raise BridgeError("got a model that is served already; call remove() of its handle first")
        parameters = inspect.signature(type(self._base).forward).parameters
        self._names = tuple(parameters)
        self._cache_name = "cache_params" if "cache_params" in parameters else "past_key_values"
        self._running = threading.local()
        self.eager: Callable[..., Any] = torch.compiler.disable(  # type: ignore[no-untyped-call]
            self.forward, reason="Switchrail's bridge plans each step on the host, outside of compiled code"
        )
        self._handles: list[RemovableHandle] = []
        self._configs: dict[int, ServedConfig] = {}
        self._implementations: dict[int, object] = {}
        try:
            self._connect()
        except BaseException:
            self.remove()
            raise

    def _connect(self) -> None:
        hooks = Hooks()
        self._unhook = weakref.finalize(self, hooks.clear)
        wanted: dict[str, Callable[..., Any]] = {}
        for _, _, contract in self._model.mixers:
            wanted.update(contract.hooks)
        targets = {f"{self._family.module}.{name}": hook for name, hook in wanted.items()}
        base = type(self._base)
        targets[f"{base.__module__}.{base.__qualname__}.forward"] = _forward_of(self._running)
        hooks.commit(
            [hooks.prepare(target, hook, "around", source=ENGINE) for target, hook in targets.items()]
        )
        for number, (_, mixer, contract) in enumerate(self._model.mixers):
            keyword = _Keyword(self._running, number, contract.packed)
            self._handles.append(mixer.register_forward_pre_hook(keyword, with_kwargs=True))
            mixer.__dict__.update(contract.methods)
        for part in self._base.modules():
            config = part.__dict__.get("config")
            if config is not None:
                if id(config) not in self._configs:
                    self._configs[id(config)] = served_config(config)
                    self._implementations[id(config)] = config._attn_implementation
                part.__dict__["config"] = self._configs[id(config)]
        self._base.__dict__[_ATTRIBUTE] = _Served(self, self._running)

    def remove(self) -> None:
        """Restores the model. Caches of the served model can be used again after another `use`."""
        if not self._unhook.alive:
            return
        self._base.__dict__.pop(_ATTRIBUTE, None)
        for part in self._base.modules():
            config = part.__dict__.get("config")
            if isinstance(config, ServedConfig):
                part.__dict__["config"] = config.original
        for handle in self._handles:
            handle.remove()
        for _, mixer, contract in self._model.mixers:
            for name in contract.methods:
                mixer.__dict__.pop(name, None)
        self._unhook()

    def clean(self, copies: Mapping[int, Any]) -> None:
        """Removes the bridge from a deep copy of the model.

        Args:
            copies: The copies that were made so far, by the ids of the originals.
        """
        for handle, (_, mixer, contract) in zip(self._handles, self._model.mixers, strict=True):
            other = copies.get(id(mixer))
            if other is not None:
                for hooks in (other._forward_pre_hooks, other._forward_pre_hooks_with_kwargs):
                    hooks.pop(handle.id, None)
                for name in contract.methods:
                    other.__dict__.pop(name, None)

    def __exit__(self, *_: object) -> None:
        self.remove()

    def cache(self, sequences: int, tokens: int) -> ServedCache:
        """A cache whose memory is allocated once, for the argument `past_key_values` of `generate`.

        The cache's method `reset` empties it for another use.

        Args:
            sequences: The largest number of sequences, including beams.
            tokens: The largest number of tokens per sequence, prompt and output together.
        """
        found = adopt(DynamicCache(config=self._base.config))
        found.memory = Memory(self._model, sequences, tokens, grows=False)
        return found

    def explain(self) -> str:
        """Describes which backend serves each layer and why, and which parts stay with transformers."""
        return explain(self.plan, self._base, [mixer for _, mixer, _ in self._model.mixers])

    def forward(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs the forward of the model without its head, with the arguments of that forward."""
        self._check_unchanged()
        if getattr(self._running, "memory", None) is not None:
            raise BridgeError("the model was called from within one of its own calls")
        given = dict(zip(self._names[1:], args[1:], strict=False)) | kwargs
        call = Call(given, self._cache_name, self._base)
        memory = self._memory_of(call)
        step = memory.step(call.counts, call.ids, call.positions)
        try:
            self._running.memory, memory.own.running.now, memory.is_whole = memory, step, False
            with torch.no_grad(), memory.own.dispatcher.running(step.parts):
                output = original(self._base, **call.arguments)
        finally:
            self._running.memory = memory.own.running.now = None
        memory.advance(call.counts, call.columns)
        memory.is_whole = True
        return call.unpacked(output)

    def _check_unchanged(self) -> None:
        """Checks that the model has not changed since `use` was called."""
        for key, config in self._configs.items():
            if config.original._attn_implementation != self._implementations[key]:
                raise implementation_changed(config.original._attn_implementation)
        now = _dtype_and_device(self._base)
        if now != self._served_as:
            raise BridgeError(
                f"got a model moved or cast after use(): {now}, expected {self._served_as}; call "
                "remove() of its handle and use() again",
                found=now,
                valid=(self._served_as,),
            )

    def _memory_of(self, call: Call) -> Memory:
        """The memory of the call's cache; new memory if the call has no cache."""
        cache = call.cache
        if cache is None:
            return Memory(self._model, call.sequences, call.columns)
        if cache.memory is None:
            cache.memory = Memory(self._model, call.sequences, call.columns + _FURTHER)
        elif not cache.memory.columns:
            cache.memory.clear(call.sequences)
        call.check(cache.memory)
        return cache.memory


def _forward_of(running: threading.local) -> Callable[..., Any]:
    """The hook on the forward of a model class. It serves the one module whose handle has this `running`.

    The hook does not refer to the handle, only the module does. So when the model is dropped, its handle is
    dropped too.
    """

    def forward(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        served: _Served | None = args[0].__dict__.get(_ATTRIBUTE)
        if served is None or served.running is not running:
            return original(*args, **kwargs)
        return served.handle.eager(original, *args, **kwargs)

    return forward


def _family_of(model: nn.Module, runtime: Runtime) -> Family:
    """The family of a model, after checking its definition and the version of transformers."""
    config = getattr(model, "config", None)
    model_type = getattr(config, "model_type", None)
    found = None if config is None else runtime.family_of(model_type) or family_of(config.to_dict())
    if not isinstance(found, Family):
        names, hint = nearest(str(model_type), FAMILIES)
        raise BridgeError(
            f"got a model of model_type {model_type!r}, which Switchrail does not serve{hint}; valid: "
            f"{', '.join(FAMILIES)}",
            found=model_type,
            valid=tuple(FAMILIES),
            nearest=names,
        )
    host = next(host for host in HOSTS if host.name == "transformers")
    since = max((str(host.since), found.since or "0"), key=release)
    problem = replace(host, since=since).problem(transformers.__version__)
    if problem is not None:
        raise BridgeError(
            f"got transformers {transformers.__version__}, and for {model_type!r} {problem}",
            found=transformers.__version__,
        )
    if type(model).__module__ != found.module:
        raise BridgeError(
            f"got a {model_type!r} defined in {type(model).__module__}, expected the definition in "
            f"{found.module}",
            found=type(model).__module__,
            valid=(found.module,),
        )
    return found


def _layout(runtime: Runtime, config: Any) -> Layout:
    values = {key: value for key, value in config.to_dict().items() if key != "_name_or_path"}
    kinds = runtime.kinds_of(values)
    return Layout.from_config(values) if kinds is None else Layout.from_kinds(config.model_type, kinds)


def _checked(model: nn.Module) -> tuple[torch.device, torch.dtype]:
    """Checks that a model is in eval mode and on one device. Returns its device and dtype."""
    if model.training:
        raise BridgeError("got a model in training mode, expected one in eval mode: call model.eval()")
    devices = {parameter.device for parameter in model.parameters()}
    if len(devices) != 1 or next(iter(devices)).type == "meta":
        names = ", ".join(sorted(map(str, devices)))
        raise BridgeError(f"got a model on {names}, expected one device other than meta", found=names)
    return devices.pop(), model.dtype  # type: ignore[return-value]


def _refuse_pickling(self: object, protocol: object) -> NoReturn:
    raise BridgeError(
        "a served model can't be pickled; call remove() of its handle first, or save it with save_pretrained "
        "or as its state_dict()"
    )


def _dtype_and_device(base: Any) -> str:
    return f"{base.dtype} on {base.device}"


class _Served:
    """Stores the handle in the `__dict__` of a module. A copy of the module has no handle."""

    def __init__(self, handle: Handle, running: threading.local) -> None:
        self.handle = handle
        self.running = running

    def __deepcopy__(self, memo: Mapping[int, Any]) -> None:
        self.handle.clean(memo)

    __reduce_ex__ = _refuse_pickling


class _Keyword:
    """A forward pre-hook of a mixer: in served calls, adds `KEYWORD`, and `seq_idx` if `packed`."""

    def __init__(self, running: threading.local, number: int, packed: bool) -> None:
        self._running = running
        self._number = number
        self._packed = packed

    def __deepcopy__(self, memo: object) -> _Keyword:
        return self

    __reduce_ex__ = _refuse_pickling

    def __call__(self, module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        memory: Memory | None = getattr(self._running, "memory", None)
        if memory is None:
            return None
        kwargs[KEYWORD] = memory.own.connected[self._number]
        if self._packed:
            kwargs["seq_idx"] = memory.own.running.step.sequence_ids
        return args, kwargs
