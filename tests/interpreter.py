"""Makes Triton's interpreter faster by avoiding repeated work that does not affect results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary


def avoid_repeated_work() -> None:
    """Make interpreted kernels run in a third of the time, if this version of the interpreter is supported.

    Triton's interpreter replaces the language's functions at each call of a device function, although the
    launch has replaced them already. It computes each integer sum in int64 as well, for an overflow check
    that is omitted unless the interpreter's option `debug` is on. It creates a type, a shape and a size for
    each value, although a launch has only a few dozen of each.

    With a GPU nothing is replaced, since the same classes compile kernels.
    """
    try:
        import torch
        from triton.runtime import interpreter
        from triton.runtime.interpreter import GridExecutor, _LangPatchScope, _patch_lang, interpreter_builder

        core, semantic = interpreter.tl.core, interpreter.TritonSemantic
        types, _ = _Types(core, interpreter._get_np_dtype), semantic.make_tensor
    except (ImportError, AttributeError):
        return  # without Triton, or with another version
    if torch.cuda.is_available():
        return
    options = interpreter_builder.options
    interpreter_builder.options = dataclasses.replace(
        options, sanitize_overflow=options.sanitize_overflow and options.debug
    )
    # For each running launch, the ids of the language modules whose functions are already replaced.
    replaced: list[frozenset[int]] = []
    launch: Callable[..., Any] = GridExecutor.__call__

    def run_launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        replaced.append(frozenset())
        try:
            return launch(self, *args, **kwargs)
        finally:
            replaced.pop()
            types.forget()

    # For each function, the ids of the language modules that it uses.
    modules: WeakKeyDictionary[Any, frozenset[int]] = WeakKeyDictionary()

    def replace_language(function: Any) -> Any:
        used = modules.get(function)
        if used is None:
            used = modules[function] = _language_modules(function, interpreter.tl)
        if replaced and used <= replaced[-1]:
            return _LangPatchScope()
        scope = _patch_lang(function)
        if replaced:
            replaced[-1] |= used
        return scope

    interpreter._patch_lang = replace_language
    interpreter._patch_attr = _replace_builtin(interpreter.interpreter_semantic)
    interpreter._get_np_dtype = types.numpy_dtype
    GridExecutor.__call__ = run_launch
    core.block_type.__init__ = types.init_block
    core.tensor.__init__ = types.init_tensor
    core.dtype.__eq__ = _equal(core.dtype.__eq__)
    core._unwrap_if_constexpr = _unwrap(core)
    semantic.broadcast_impl_value = _broadcast(semantic.broadcast_impl_value)


class _Types:
    """Properties of types, computed once per type and shared by all values of a launch."""

    def __init__(self, core: Any, numpy_dtype: Callable[[Any], Any]) -> None:
        self._tuple, self._constexpr = core.tuple, core.constexpr
        self._make_block: Callable[..., None] = core.block_type.__init__
        self._make_numpy_dtype = numpy_dtype
        self._blocks: dict[tuple[int, ...], dict[str, Any]] = {}
        self._numpy_dtypes: dict[str, Any] = {}
        self._scalar = self._tuple([]), self._constexpr(1)
        self.init_block = lambda block, element_ty, shape: self._init_block(block, element_ty, shape)
        self.init_tensor = lambda tensor, handle, type: self._init_tensor(tensor, handle, type)

    def forget(self) -> None:
        """Forget the pointer types of a finished launch."""
        self._blocks.clear()

    def _init_block(self, block: Any, element_ty: Any, shape: Any) -> None:
        sizes = [each.value if type(each) is self._constexpr else each for each in shape]
        key = id(element_ty), *sizes
        known = self._blocks.get(key)
        if known is None:
            self._make_block(block, element_ty, sizes)
            sizes = [self._constexpr(each) for each in sizes]
            block.of_tensor = self._tuple(sizes), self._constexpr(block.numel)
            self._blocks[key] = vars(block).copy()
        else:
            vars(block).update(known)

    def _init_tensor(self, tensor: Any, handle: Any, type: Any) -> None:
        tensor.handle = handle
        tensor.type = type
        tensor.dtype = type.scalar
        tensor.shape, tensor.numel = type.of_tensor if type.is_block() else self._scalar

    def numpy_dtype(self, dtype: Any) -> Any:
        """The interpreter's `numpy_dtype`, without making a table of all types at each call."""
        name = dtype.scalar.name
        if name not in self._numpy_dtypes:
            self._numpy_dtypes[name] = self._make_numpy_dtype(dtype)
        return self._numpy_dtypes[name]


def _replace_builtin(semantic: Any) -> Callable[..., None]:
    def replace(place: Any, name: str, member: Any, builder: Any, scope: Any) -> None:
        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return member(*args, **kwargs)

        scope.set_attr(place, name, call)

    return replace


def _equal(equal: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    return lambda self, other: self is other or equal(self, other)


def _unwrap(core: Any) -> Callable[[Any], Any]:
    constexpr, unwrap = core.constexpr, core._unwrap_if_constexpr
    plain = {int, float, bool, str, type(None), core.tensor, core.dtype, core.block_type, core.pointer_type}

    def unwrap_quickly(value: Any) -> Any:
        kind = type(value)
        if kind is constexpr:
            return value.value
        return value if kind in plain else unwrap(value)

    return unwrap_quickly


def _broadcast(broadcast: Callable[..., Any]) -> Callable[..., Any]:
    """Broadcasts as Triton does, but without creating types if shapes are equal or one operand is a
    scalar."""

    def of_two(self: Any, left: Any, right: Any) -> Any:
        one, other = left.type, right.type
        if one.is_block():
            if not other.is_block():
                return left, splat(self, right, one)
            if one.shape.values == other.shape.values:
                return left, right
        elif other.is_block():
            return splat(self, left, other), right
        else:
            return left, right
        return broadcast(self, left, right)

    def splat(self: Any, scalar: Any, block: Any) -> Any:
        type = block.with_element_ty(scalar.dtype)
        return self.make_tensor(self.builder.create_splat(type, scalar.handle), type)

    return of_two


def _language_modules(function: Any, language: Any) -> frozenset[int]:
    named = {id(value) for value in function.__globals__.values()}
    return frozenset(named & {id(language), id(language.core)})
