"""Makes Triton's interpreter faster by avoiding repeated work that does not affect results."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from tests.operators import Operators


def avoid_repeated_work() -> None:
    """Make interpreted kernels run in a third of the time, if this version of the interpreter is supported.

    The interpreter repeats the following work, which is avoided here. It replaces the language's functions at
    each call of a device function, although the launch has replaced them already. It computes each integer
    sum in int64 as well, for an overflow check that it omits unless its option `debug` is on. It creates a
    type, a shape and a size for each value, although a kernel has only a few dozen of each. It compares and
    converts the types of both operands of each operation (see `tests.operators`). It parses and compiles a
    function again if the function's module is loaded again.

    With a GPU nothing is replaced, since the same classes compile kernels.
    """
    try:
        import torch
        from triton.runtime import interpreter
        from triton.runtime.interpreter import GridExecutor, _LangPatchScope, _patch_lang, interpreter_builder

        core, semantic = interpreter.tl.core, interpreter.TritonSemantic
        types, _ = _Types(core, interpreter._get_np_dtype), semantic.make_tensor
        load_data = interpreter._interpreter.load
    except (ImportError, AttributeError):
        return  # Triton is missing, or its version is not supported
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
    shortcuts = Operators(core, interpreter.TensorHandle, load_data)
    interpreter._patch_builtin = _replace_builtins(
        core.is_builtin, interpreter.interpreter_semantic, core.tensor, shortcuts
    )
    semantic.to_tensor = _to_tensor(semantic.to_tensor, core.tensor)
    interpreter._get_np_dtype = types.numpy_dtype
    _keep_code(interpreter)
    GridExecutor.__call__ = run_launch
    _share(core.pointer_type, types.pointer)
    _share(core.block_type, types.block)
    core.tensor.__init__ = types.init_tensor
    core.dtype.__eq__ = _equal(core.dtype.__eq__)
    core._unwrap_if_constexpr = _unwrap(core)
    semantic.broadcast_impl_value = _broadcast(semantic.broadcast_impl_value, interpreter_builder)


class _Types:
    """Types and their properties, made once and shared by all values."""

    def __init__(self, core: Any, numpy_dtype: Callable[[Any], Any]) -> None:
        self._tuple, self._constexpr = core.tuple, core.constexpr
        self._make_numpy_dtype = numpy_dtype
        self._made: dict[tuple[Any, ...], Any] = {}
        self._numpy_dtypes: dict[str, Any] = {}
        self._scalar = self._tuple([]), self._constexpr(1)
        self.init_tensor = lambda tensor, handle, type: self._init_tensor(tensor, handle, type)

    def block(self, make: Callable[..., Any], element_ty: Any, shape: Any) -> Any:
        sizes = [each.value if type(each) is self._constexpr else each for each in shape]
        key = id(element_ty), *sizes
        block = self._made.get(key)
        if block is None:
            block = self._made[key] = make(element_ty, sizes)
            block.of_tensor = (
                self._tuple([self._constexpr(each) for each in sizes]),
                self._constexpr(block.numel),
            )
        return block

    def pointer(
        self, make: Callable[..., Any], element_ty: Any, address_space: str = "global", const: bool = False
    ) -> Any:
        element_ty = element_ty.value if type(element_ty) is self._constexpr else element_ty
        key = id(element_ty), address_space, const
        if key not in self._made:
            self._made[key] = make(element_ty, address_space, const)
        return self._made[key]

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


def _share(kind: Any, find: Callable[..., Any]) -> None:
    """Make calls of a class return the instance that `find` has for the arguments."""
    init = kind.__init__

    def make(*args: Any) -> Any:
        made = object.__new__(kind)
        init(made, *args)
        return made

    def new(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return find(make, *args, **kwargs) if args or kwargs else object.__new__(cls)

    kind.__new__ = new
    kind.__init__ = lambda self, *args, **kwargs: None


def _replace_builtins(
    is_builtin: Callable[[Any], bool], semantic: Any, tensor: Any, shortcuts: Operators
) -> Callable[..., None]:
    """Returns a function that replaces a module's functions as Triton does, but lists them only once."""
    found: dict[Any, list[tuple[str, Any, Any]]] = {}

    def wrap(place: Any, name: str, member: Any) -> Any:
        function = getattr(member, "__wrapped__", member)  # without the check that `_semantic` is given

        def call(*args: Any, **kwargs: Any) -> Any:
            kwargs["_semantic"] = semantic
            return function(*args, **kwargs)

        return (
            shortcuts.find(name, call) if place is tensor else shortcuts.find_function(name, call)
        ) or call

    def replace(place: Any, builder: Any, scope: Any) -> None:
        if place not in found:
            there = [each for each in inspect.getmembers(place) if is_builtin(each[1])]
            found[place] = [(name, member, wrap(place, name, member)) for name, member in there]
        for name, member, call in found[place]:
            if getattr(place, name) is member:  # not yet replaced by the same launch
                scope.set_attr(place, name, call)

    return replace


def _keep_code(interpreter: Any) -> None:
    """Let equal functions, such as those of a module that is loaded again, be rewritten once."""
    rewriter = interpreter.FunctionRewriter
    rewrite: Callable[[Any], Any] = rewriter.rewrite_ast
    rewritten: dict[tuple[CodeType, str], CodeType] = {}
    last: list[CodeType] = []

    def compile_tree(source: Any, **kwargs: Any) -> CodeType:
        last[:] = [source if isinstance(source, CodeType) else compile(source, **kwargs)]
        return last[0]

    def rewrite_once(self: Any) -> Any:
        key = self.fn.__code__, repr((self.fn.__annotations__, self.fn.__defaults__))
        if key in rewritten:
            return self._compile_and_exec(rewritten[key])
        last.clear()
        function = rewrite(self)
        if last:
            rewritten[key] = last[0]
        return function

    interpreter.compile = compile_tree
    rewriter.rewrite_ast = rewrite_once


def _to_tensor(convert: Callable[..., Any], tensor: Any) -> Callable[..., Any]:
    def to_tensor(self: Any, value: Any, check_type: bool = True) -> Any:
        return value if type(value) is tensor else convert(self, value, check_type)

    return to_tensor


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


def _broadcast(broadcast: Callable[..., Any], builder: Any) -> Callable[..., Any]:
    """Returns a `broadcast_impl_value` that takes a shortcut if shapes are equal or an operand is a scalar.

    Calls with another builder, which compile kernels, take no shortcut.
    """

    def of_two(self: Any, left: Any, right: Any) -> Any:
        if self.builder is not builder:
            return broadcast(self, left, right)
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
