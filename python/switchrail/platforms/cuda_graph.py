"""CUDA graphs."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from switchrail.platforms.graph import Graph

_failed: Final[list[Any]] = []

# A step with prompt tokens is captured in pieces, and the calls between the pieces run eagerly. A piece
# without launches is an empty graph, about which torch would warn.
warnings.filterwarnings("ignore", message="The CUDA Graph is empty")


class CudaGraph(Graph):
    """A `torch.cuda.CUDAGraph`.

    During a capture, other threads can launch kernels and allocate memory, but torch refuses to draw random
    numbers from its default generator in any thread.
    """

    def __init__(self, shares: Graph | None = None) -> None:
        super().__init__(shares)
        self._graph = torch.cuda.CUDAGraph()
        # cuBLAS has a workspace per stream. Graphs that share memory use one stream, to share that too.
        together = shares if isinstance(shares, CudaGraph) else None
        self._stream: Any = together._stream if together else torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._pool: Any = together._pool if together else torch.cuda.graph_pool_handle()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Captures on a separate stream. Launches in the block are recorded; only `replay` executes them."""
        torch.cuda.synchronize()
        with torch.cuda.stream(self._stream):
            self._graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                yield
            finally:
                self._end()

    def _end(self) -> None:
        try:
            self._graph.capture_end()
        except Exception:
            # After a failed capture, torch leaves its allocators in capture mode. The device's allocator is
            # reset here. The allocator of pinned host memory can't be reset and still refers to this graph.
            # So the graph is kept alive. No later capture may use the graph's memory pool (see `Graph`).
            _failed.append(self._graph)
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), self._pool)
            raise

    def replay(self) -> None:
        """Launches the graph on the current stream."""
        self._graph.replay()

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor at the same addresses as `tensor` that does not own the memory.

        Once `tensor` is freed, later captures with the same memory pool may use this memory again.
        """
        storage = tensor.untyped_storage()
        same = torch._C._construct_storage_from_data_pointer(
            storage.data_ptr(), tensor.device, storage.nbytes()
        )
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        return empty.set_(same, tensor.storage_offset(), tensor.shape, tensor.stride())
