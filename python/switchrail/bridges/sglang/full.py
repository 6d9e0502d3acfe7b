"""Attention behind SGLang's interface of attention backends, on SGLang's paged cache. Imports SGLang."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
from sglang.srt.layers.radix_attention import AttentionType, RadixAttention

from switchrail.adapters import needed_features, sequences
from switchrail.bridges.sglang.drafts import drafts_of
from switchrail.bridges.sglang.routes import bind_layers, planned_together, radix_heads
from switchrail.bridges.sglang.steps import Steps
from switchrail.dispatch import Part
from switchrail.errors import BridgeError
from switchrail.ops import AttentionCall, AttentionLayer
from switchrail.ops.batch import Bounds, PagedBatch, PagedTreeBatch

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from switchrail.bridges.sglang.versions import Version
    from switchrail.dispatch import Dispatcher
    from switchrail.ops.batch import Phase
    from switchrail.runtime import Runtime


class FullAttention(AttentionBackend):  # type: ignore[misc]
    """Softmax attention of one of SGLang's model runners.

    Attributes:
        kind: The kind of the layers, as in a layout.
        op: The op of the layers.
        steps: The passes of the model.
    """

    kind, op = "full_attention", "attention"

    def __init__(self, runtime: Runtime, version: Version, model_runner: Any, name: str) -> None:
        """Resolves and binds the layers' backends, and checks SGLang's memory against their contracts.

        Raises:
            BridgeError: The model or an option of the server is not supported.
            SwitchrailError: No backend fits, or the chosen backend does not.
        """
        super().__init__()
        self.device = model_runner.device
        self.req_to_token_pool = model_runner.req_to_token_pool
        self.token_to_kv_pool = model_runner.token_to_kv_pool
        self.max_context_len = int(model_runner.model_config.context_len)
        self._page = int(model_runner.page_size)
        self._locate = _location if version.location else _plain
        self._drafts = drafts_of(version, model_runner)
        # Drafts may follow the longest context: SGLang's table of tokens has columns for them.
        self._longest = self.max_context_len + (0 if self._drafts is None else self._drafts.tokens)
        _check(model_runner)
        # SGLang's lightning layers also have modules of this class, which store no keys and values.
        own = getattr(self.token_to_kv_pool, "full_attention_layer_id_mapping", None)
        self._modules: dict[int, Any] = {
            module.layer_id: module
            for module in model_runner.model.modules()
            if isinstance(module, RadixAttention)
            and self._reads_cache(module)
            and (own is None or module.layer_id in own or model_runner.is_draft_worker)
        }
        for module in self._modules.values():
            self._check_layer(module)
        self._layers: dict[Phase, dict[int, Any]] = {}
        dispatchers: dict[Phase, Dispatcher] = {}
        asked = _asked(version, model_runner, name, verifies=self._drafts is not None)
        for group in planned_together(version, model_runner, asked):
            dispatcher = self._bind(runtime, version, model_runner, group)
            dispatchers.update(dict.fromkeys(group, dispatcher))
        self.steps = Steps(dispatchers)

    def _bind(
        self, runtime: Runtime, version: Version, model_runner: Any, asked: Mapping[Phase, str]
    ) -> Dispatcher:
        layers = {id: self._layer(module) for id, module in self._modules.items()}
        self._layers.update(dict.fromkeys(asked, layers))
        part = self._example("verify" in asked)
        assert part.pages is not None
        needed: set[str] = set()
        for id, module in self._modules.items():
            shape = part.rows.stop, module.tp_q_head_num, module.qk_head_dim
            q = torch.empty(shape, dtype=model_runner.dtype, device=self.device)
            needed |= needed_features(part.phase, self._call(module, layers[id], q), part.pages)
        dispatcher = bind_layers(
            runtime,
            version,
            model_runner,
            self.kind,
            {id: radix_heads(module) for id, module in self._modules.items()},
            asked,
            {self.op: needed},
            page_size=self._page,
        )
        for id, layer in layers.items():
            dispatcher.add(id, layer)
        return dispatcher

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        mode = forward_batch.forward_mode
        if mode.is_idle():
            return
        lengths = forward_batch.seq_lens_cpu.tolist()
        kv_lens = forward_batch.seq_lens.to(torch.int32)
        if mode.is_target_verify():
            assert self._drafts is not None
            drafted = self._drafts.tokens
            lengths = [length + drafted for length in lengths]
            table = self._table(forward_batch.req_pool_indices, max(lengths))
            self.steps.begin([self._drafts.pages(table, kv_lens + drafted, lengths, forward_batch.spec_info)])
            return
        table = self._table(forward_batch.req_pool_indices, max(lengths))
        phase: Phase = "decode" if mode.is_decode() else "prefill"
        rows = [1] * len(lengths) if phase == "decode" else map(int, forward_batch.extend_seq_lens_cpu)
        self.steps.begin([_part(phase, (*rows,), table, kv_lens, lengths)])

    def forward_decode(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> torch.Tensor:
        """Runs a layer on one token of each sequence. `forward_extend` runs it on prompts or drafts."""
        used = [name for name, value in options.items() if value is not None]
        if used:
            raise BridgeError(f"Switchrail's attention has no arguments {', '.join(used)}", found=used)
        if save_kv_cache and k is not None and v is not None:
            place = self._locate(forward_batch.out_cache_loc)
            self.token_to_kv_pool.set_kv_buffer(layer, place, k, v)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        call = self._call(layer, self._layers[self.steps.phase][layer.layer_id], q)
        self.steps.dispatch(call)
        self.steps.zero_padding(call.out)
        return call.out.view(len(q), -1)  # type: ignore[no-any-return]

    forward_extend = forward_decode

    def get_cuda_graph_seq_len_fill_value(self) -> int:
        """The length of a padding sequence."""
        return 1

    def init_cuda_graph_state(self, max_bs: int, max_num_tokens: int) -> None:
        """Allocates the page tables and lengths that captured passes read."""
        pages = -(-self._longest // self._page)
        self._tables = torch.zeros(max_bs, pages, dtype=torch.int32, device=self.device)
        self._kv_lens = torch.ones(max_bs, dtype=torch.int32, device=self.device)

    def init_forward_metadata_out_graph(self, forward_batch: Any, in_capture: bool = False) -> None:
        """Plans a pass for the capture of a graph, or updates the plans of a captured pass."""
        self._prepare_graph(
            forward_batch.batch_size,
            forward_batch.req_pool_indices,
            forward_batch.seq_lens,
            None if in_capture else forward_batch.seq_lens_cpu,
            forward_batch.forward_mode,
            forward_batch.spec_info,
        )

    def init_forward_metadata_capture_cuda_graph(
        self,
        bs: int,
        num_tokens: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        encoder_lens: object,
        forward_mode: Any,
        spec_info: object,
    ) -> None:
        """Plans a pass for the capture of a graph. SGLang 0.5.11 calls this method."""
        self._prepare_graph(bs, req_pool_indices, seq_lens, None, forward_mode, spec_info)

    def init_forward_metadata_replay_cuda_graph(
        self,
        bs: int,
        req_pool_indices: torch.Tensor,
        seq_lens: torch.Tensor,
        seq_lens_sum: int,
        encoder_lens: object,
        forward_mode: Any,
        spec_info: object,
        seq_lens_cpu: torch.Tensor,
    ) -> None:
        """Updates the plans of a captured pass. SGLang 0.5.11 calls this method."""
        self._prepare_graph(bs, req_pool_indices, seq_lens, seq_lens_cpu, forward_mode, spec_info)

    def update_verify_buffers_to_fill_after_draft(self, spec_info: Any, cuda_graph_bs: int | None) -> None:
        """Updates a captured verification that was planned before the drafts were known."""
        if self._drafts is None or not self._drafts.tree or cuda_graph_bs is None:
            return
        part = self.steps.captured("verify", cuda_graph_bs)
        assert isinstance(part.pages, PagedTreeBatch)
        part.pages.parents.copy_(self._drafts.parents(cuda_graph_bs, spec_info, self._kv_lens.device)[0])
        self.steps.replay(part)

    def _prepare_graph(
        self,
        count: int,
        requests: torch.Tensor,
        kv_lens: torch.Tensor,
        host_lens: torch.Tensor | None,
        mode: Any,
        links: object,
    ) -> None:
        """Plans a pass for the capture of a graph if `host_lens` is None; else updates a captured pass."""
        drafts = self._drafts if mode.is_target_verify() else None
        if drafts is None and not mode.is_decode_or_idle():
            raise BridgeError(
                "Switchrail's attention captures only decode steps and verification", found=str(mode)
            )
        drafted = 0 if drafts is None else drafts.tokens
        new = (
            [1 + drafted] * count if host_lens is None else [n + drafted for n in host_lens[:count].tolist()]
        )
        torch.add(kv_lens[:count], drafted, out=self._kv_lens[:count])
        table = self._table(requests[:count], max(new))
        self._tables[:count, : table.shape[1]].copy_(table)
        tables, lengths = self._tables[:count], self._kv_lens[:count]
        if drafts is None:
            part = _part("decode", (1,) * count, tables, lengths, new)
        else:
            part = drafts.pages(tables, lengths, new, links)
        assert part.pages is not None
        if host_lens is None:
            rows = part.rows.stop
            self.steps.capture(part, Bounds(sequences=count, rows=rows, tokens=self._longest))
            return
        captured = self.steps.captured(part.phase, count).pages
        assert captured is not None
        if isinstance(captured, PagedTreeBatch) and isinstance(part.pages, PagedTreeBatch):
            captured.parents.copy_(part.pages.parents)
        self.steps.replay(replace(part, pages=replace(captured, kv_seqlens=part.pages.kv_seqlens)))

    def _table(self, requests: torch.Tensor, longest: int) -> torch.Tensor:
        """The page tables [N, P] of requests, from SGLang's table with the cache row of each token."""
        tokens: torch.Tensor = self.req_to_token_pool.req_to_token[requests, : longest : self._page]
        return tokens if self._page == 1 else tokens // self._page

    def _reads_cache(self, module: Any) -> bool:
        """Whether a module of SGLang attends to the cache."""
        return True

    def _check_layer(self, module: Any) -> None:
        """Refuses a layer that the ops can't compute."""
        problems = {
            "attends to an encoder": module.is_cross_attention,
            "attends to later positions": module.attn_type != AttentionType.DECODER,
            "scales its logits by position": module.xai_temperature_len > 0,
            **self._problems(module),
        }
        for problem, found in problems.items():
            if found:
                raise BridgeError(
                    f"layer {module.layer_id} {problem}, which Switchrail does not serve in SGLang"
                )

    def _problems(self, module: Any) -> dict[str, bool]:
        return {"has values of another size than its keys": module.qk_head_dim != module.v_head_dim}

    def _layer(self, module: Any) -> Any:
        """The constant arguments of a layer."""
        pool = self.token_to_kv_pool
        keys, values = pool.get_key_buffer(module.layer_id), pool.get_value_buffer(module.layer_id)
        window = module.sliding_window_size
        return AttentionLayer(
            k_cache=keys.view(-1, self._page, *keys.shape[1:]),
            v_cache=values.view(-1, self._page, *values.shape[1:]),
            scale=float(module.scaling),
            window=window + 1 if window > 0 else None,
            soft_cap=float(module.logit_cap) if module.logit_cap else None,
        )

    def _call(self, module: Any, layer: Any, q: torch.Tensor) -> Any:
        """A layer's call."""
        return AttentionCall(layer, q, torch.empty_like(q, memory_format=torch.contiguous_format))

    def _example(self, verifies: bool) -> Part:
        """An example of a pass, with two requests. It shows which features the backends need."""
        lengths = torch.ones(2, dtype=torch.int32, device=self.device)
        table = self._table(torch.zeros(2, dtype=torch.int64, device=self.device), 2 * self._page)
        if verifies:
            assert self._drafts is not None
            return self._drafts.pages(table, lengths, [self._drafts.tokens] * 2, None)
        return _part("decode", [1, 1], table, lengths, [1, 1])


def _asked(version: Version, model_runner: Any, name: str, *, verifies: bool) -> dict[Phase, str]:
    """The phases in which SGLang uses the backend `name`, each with that name.

    If neither of the model runner's names by phase is `name`, as for some draft models, prefill and decode
    both use it. If drafts are verified, verification uses the backend of prefill or decode, as SGLang chose.
    """
    phases: tuple[Phase, ...] = ("prefill", "decode")
    live = [
        phase for phase in phases if getattr(model_runner, f"{phase}_attention_backend_str", name) == name
    ]
    asked: dict[Phase, str] = dict.fromkeys(live or phases, name)
    mode = getattr(version.speculation(model_runner), "speculative_attention_mode", "prefill")
    if verifies and ("decode" if mode == "decode" else "prefill") in asked:
        asked["verify"] = name
    return asked


def _part(
    phase: Phase, rows: Sequence[int], table: torch.Tensor, kv_lens: torch.Tensor, lengths: Sequence[int]
) -> Part:
    batch = PagedBatch(
        **sequences(tuple(rows), table.device), page_table=table, kv_lens=kv_lens, kv_seqlens=tuple(lengths)
    )
    return Part(phase=phase, rows=slice(0, sum(rows)), pages=batch)


def _location(place: torch.Tensor) -> Any:
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    return KVWriteLoc(place, None)


def _plain(place: torch.Tensor) -> torch.Tensor:
    return place


def _check(model_runner: Any) -> None:
    """Refuses options that the backend does not serve, before the first request."""
    pool = model_runner.token_to_kv_pool
    if getattr(pool, "swa_kv_pool", None) is not None:
        raise BridgeError("Switchrail does not serve SGLang's separate pool for sliding windows")
    if model_runner.kv_cache_dtype != model_runner.dtype:
        raise BridgeError(
            f"the cache of keys and values has dtype {model_runner.kv_cache_dtype}; valid: "
            f"{model_runner.dtype}, the model's dtype",
            found=str(model_runner.kv_cache_dtype),
            valid=(str(model_runner.dtype),),
        )
