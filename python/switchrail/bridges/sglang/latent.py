"""SGLang's latent attention (MLA), on its pool of latents. Imports SGLang."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import torch

from switchrail.adapters import sequences
from switchrail.bridges.sglang.full import FullAttention
from switchrail.bridges.sglang.routes import platform_of
from switchrail.errors import BridgeError
from switchrail.ops import MlaCall, MlaLayer
from switchrail.ops.ragged import RaggedBatch, ragged_attention
from switchrail.platforms.operations import RaggedAttention

if TYPE_CHECKING:
    from switchrail.bridges.sglang.versions import Version
    from switchrail.runtime import Runtime

_HANDLERS = "sglang.srt.models.deepseek_common.attention_backend_handler"


class LatentAttention(FullAttention):
    """Latent attention of one of SGLang's model runners.

    SGLang has two modules for a layer. The first attends to the cache of latents with absorbed queries. The
    second attends to the expanded keys and values of a prompt, which are packed like the prompt's queries.
    SGLang expands a cached prefix in chunks, calls the second module for each chunk, and merges the results.
    """

    kind, op = "mla", "mla"

    def __init__(self, runtime: Runtime, version: Version, model_runner: Any, name: str) -> None:
        """See `FullAttention`."""
        pool = model_runner.token_to_kv_pool
        self._rank = int(getattr(pool, "full_kv_pool", pool).kv_lora_rank)
        super().__init__(runtime, version, model_runner, name)
        platform = platform_of(runtime, model_runner.device)
        self._ragged = runtime.forward_of(RaggedAttention, platform) or ragged_attention
        self._own: RaggedBatch | None = None
        self._chunks: list[RaggedBatch] = []
        if version.chunked_prefixes:
            handlers = import_module(_HANDLERS)
            handlers.AttentionBackendRegistry.register(
                name, lambda attn, batch: handlers._handle_attention_backend(attn, batch, name)
            )

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Plans an eager pass."""
        super().init_forward_metadata(forward_batch)
        self._own, self._chunks = None, []
        mode = forward_batch.forward_mode
        if mode.is_extend() and not mode.is_target_verify():
            seqlens = tuple(map(int, forward_batch.extend_seq_lens_cpu))
            starts = sequences(seqlens, self.device)["cu_seqlens"]
            self._own = RaggedBatch(
                cu_seqlens=starts, cu_seqlens_k=starts, seqlens=seqlens, seqlens_k=seqlens
            )

    def init_mha_chunk_metadata(self, forward_batch: Any, disable_flashinfer_ragged: bool = False) -> None:
        """Makes a batch for each chunk of the cached prefixes; ignores `disable_flashinfer_ragged`."""
        assert self._own is not None
        self._chunks = [
            RaggedBatch(
                cu_seqlens=self._own.cu_seqlens,
                cu_seqlens_k=forward_batch.prefix_chunk_cu_seq_lens[i],
                seqlens=self._own.seqlens,
                seqlens_k=tuple(map(int, forward_batch.prefix_chunk_seq_lens_cpu[i])),
            )
            for i in range(forward_batch.num_prefix_chunks)
        ]

    def forward_extend(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> Any:
        """Runs a layer on tokens of prompts or drafts, over the cache or over expanded keys and values."""
        if layer is self._modules.get(layer.layer_id):
            return self.forward_decode(q, k, v, layer, forward_batch, save_kv_cache, **options)
        if self._own is None or k is None or v is None:
            raise BridgeError(
                f"layer {layer.layer_id} has expanded keys and values in a step without prompts"
            )
        self.steps.served_elsewhere()
        to_prefix = bool(forward_batch.attn_attend_prefix_cache)
        batch = self._chunks[forward_batch.prefix_chunk_idx] if to_prefix else self._own
        rows, keys = sum(batch.seqlens), sum(batch.seqlens_k)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        found, lse = self._ragged(
            q[:rows],
            k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)[:keys],
            v.view(-1, layer.tp_v_head_num, layer.v_head_dim)[:keys],
            batch,
            scale=float(layer.scaling),
            causal=not to_prefix,
        )
        if len(q) > rows:  # the further rows are padding
            found = torch.nn.functional.pad(found, (0, 0, 0, 0, 0, len(q) - rows))
            lse = torch.nn.functional.pad(lse, (0, 0, 0, len(q) - rows), value=-torch.inf)
        if forward_batch.mha_return_lse:
            return found, lse
        return found.flatten(1)

    def _reads_cache(self, module: Any) -> bool:
        return bool(module.tp_k_head_num == 1 and module.v_head_dim == self._rank < module.qk_head_dim)

    def _problems(self, module: Any) -> dict[str, bool]:
        return {
            "has a soft cap": bool(module.logit_cap),
            "has a sliding window": module.sliding_window_size > 0,
        }

    def _layer(self, module: Any) -> MlaLayer:
        latents = self.token_to_kv_pool.get_key_buffer(module.layer_id)
        return MlaLayer(
            kv_cache=latents.view(-1, self._page, latents.shape[-1]),
            w_k=None,
            w_v=None,
            scale=float(module.scaling),
        )

    def _call(self, module: Any, layer: MlaLayer, q: torch.Tensor) -> MlaCall:
        latent, rotated = q[..., : self._rank], q[..., self._rank :]
        return MlaCall(
            layer, latent, rotated, torch.empty_like(latent, memory_format=torch.contiguous_format)
        )
