"""Where a layer's call leaves the model definition and reaches the backends of the route plan."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from switchrail._core import BatchRoutes, BoundPlan
from switchrail.engine.memory import Pools
from switchrail.engine.step import Part, Step
from switchrail.errors import DispatchError


class Dispatcher:
    """Runs the ops of one model's layers on the backends that its route plan chose.

    In each step every (layer, op) must come by exactly once: a model definition that skips one, or takes
    another path through its code, would otherwise mix sequences without a word.
    """

    def __init__(self, bound: BoundPlan, pools: Pools, routes: Iterable[tuple[int, str]]) -> None:
        """Serves the given routes.

        Args:
            bound: The route plan with its backends.
            pools: Where the layers' memory is.
            routes: Every (layer id, op) of the model.
        """
        self.bound = bound
        self.pools = pools
        self._routes = frozenset(routes)
        self._left: set[tuple[int, str]] = set()
        self._step: Step | None = None
        self._at: tuple[BatchRoutes, str, int | None] | None = None  # the backend's call that runs

    @property
    def step(self) -> Step:
        """The step that runs.

        Raises:
            DispatchError: None does: the engine's model was called by somebody else.
        """
        if self._step is None:
            raise DispatchError(
                "a layer of an engine's model ran outside of a step; call the engine, not its model"
            )
        return self._step

    @contextmanager
    def running(self, step: Step) -> Iterator[None]:
        """Lets the layers' calls in the block belong to a step; each backend in use plans it once a phase.

        Raises:
            DispatchError: The block ended, and an op of a layer was not run.
            Exception: What a backend raised, with a note (PEP 678) that says which one, and where.
        """
        try:
            for part in step.parts:
                phase = part.phase
                routes = self.bound.at(phase, part.pages.seqlens, part.pages.kv_seqlens)
                step.routes[phase] = routes
                for op, backend in routes.backends:
                    self._at = routes, op, None
                    batch = part.pages if op == "attention" else part.states
                    step.plans[phase, id(backend)] = backend.plan(phase, batch)
            self._at = None
            self._left = set(self._routes)
            self._step = step
            yield
        except Exception as error:
            if self._at is not None:
                error.__notes__ = [*getattr(error, "__notes__", ()), self._place(*self._at)]  # type: ignore[attr-defined]
            raise
        finally:
            self._step = self._at = None
        if self._left:
            layer, op = min(self._left)
            raise DispatchError(
                f"layer {layer} did not run its {op} in this step ({len(self._left)} calls are missing); "
                "the model definition took a path that the engine does not see",
                layer=layer,
                op=op,
                found=0,
            )

    def attention(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, scale: float
    ) -> torch.Tensor:
        """Writes keys and values to their pages and attends.

        Args:
            layer: Layer id.
            q: [T, H, D].
            k: [T, HKV, D].
            v: [T, HKV, D].
            scale: Of the products of q and k.

        Returns:
            [T, H, D], contiguous, of q's dtype.
        """
        step = self._enter(layer, "attention")
        pool = self.pools.kv["mha"]
        pool.write(layer, step.kv_rows, k, v)
        k_cache, v_cache = pool.caches(layer)
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        for part, call, plan in self._calls(step, layer, "attention"):
            call(
                q[part.rows],
                k_cache,
                v_cache,
                out=out[part.rows],
                batch=part.pages,
                plan=plan,
                scale=scale,
            )
        return out

    def gated_delta(
        self,
        layer: int,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        *,
        g: torch.Tensor,
        beta: torch.Tensor,
        scale: float,
        qk_l2norm: bool,
    ) -> torch.Tensor:
        """Runs the gated delta rule from and into the layer's state pool.

        Args:
            layer: Layer id.
            q: [T, H, K].
            k: [T, H, K].
            v: [T, HV, V].
            g: [T, HV] float32, the log of the decay.
            beta: [T, HV].
            scale: Of q.
            qk_l2norm: Whether q and k are normalised first.

        Returns:
            [T, HV, V], contiguous, of q's dtype.
        """
        step = self._enter(layer, "gated_delta")
        state = self.pools.state.states[layer]
        out = torch.empty(v.shape, dtype=q.dtype, device=q.device)
        for part, call, plan in self._calls(step, layer, "gated_delta"):
            rows = part.rows
            call(
                q[rows],
                k[rows],
                v[rows],
                g=g[rows],
                beta=beta[rows],
                state=state,
                out=out[rows],
                batch=part.states,
                plan=plan,
                scale=scale,
                qk_l2norm=qk_l2norm,
            )
        return out

    def short_conv(
        self,
        layer: int,
        x: torch.Tensor,
        weight: torch.Tensor,
        *,
        bias: torch.Tensor | None,
        activation: Literal["silu"] | None,
    ) -> torch.Tensor:
        """Convolves along time from and into the layer's pool of windows.

        Args:
            layer: Layer id.
            x: [T, C].
            weight: [C, W].
            bias: [C] or None.
            activation: Applied to the result.

        Returns:
            [T, C], contiguous, of x's dtype.
        """
        step = self._enter(layer, "short_conv")
        state = self.pools.state.windows[layer]
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for part, call, plan in self._calls(step, layer, "short_conv"):
            call(
                x[part.rows],
                weight,
                bias=bias,
                state=state,
                out=out[part.rows],
                batch=part.states,
                plan=plan,
                activation=activation,
            )
        return out

    def _calls(self, step: Step, layer: int, op: str) -> Iterator[tuple[Part, Callable[..., None], object]]:
        """Each part of the step, with the backend's method for it and what that backend prepared."""
        for part in step.parts:
            phase = part.phase
            routes = step.routes[phase]
            plan = step.plans[phase, id(routes.backend(op, layer))]
            self._at = routes, op, layer
            yield part, routes.lookup(op, layer), plan
            self._at = None

    def _place(self, routes: BatchRoutes, op: str, layer: int | None) -> str:
        names = {name for other, served, name in routes.table if served == op and layer in (None, other)}
        call = f"{op} {routes.phase}"
        where = f"{call} of layer {layer}" if layer is not None else f"planning {call}"
        return f"backend {', '.join(sorted(names))} failed in {where}"

    def _enter(self, layer: int, op: str) -> Step:
        step = self.step
        try:
            self._left.remove((layer, op))
        except KeyError:
            known = (layer, op) in self._routes
            raise DispatchError(
                f"layer {layer} ran its {op} twice in one step"
                if known
                else f"layer {layer} ran {op}, which its layout does not have",
                layer=layer,
                op=op,
                found=2 if known else 1,
            ) from None
        return step


__all__ = ["Dispatcher"]
