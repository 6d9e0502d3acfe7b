"""Two backends of the gated delta rule, which both compute the same as the backend `torch`."""

from __future__ import annotations

from dataclasses import dataclass

from switchrail import Registry
from switchrail.ops.gated_delta.torch import TorchGatedDelta


@dataclass(frozen=True)
class CastorConfig:
    brightness: float = 1.6


@dataclass(frozen=True)
class PolluxConfig:
    planet: str = "Thestias"


class Castor(TorchGatedDelta):
    pass


class Pollux(TorchGatedDelta):
    pass


def register_castor(registry: Registry) -> None:
    registry.register("castor", Castor, op="gated_delta", config=CastorConfig)


def register_pollux(registry: Registry) -> None:
    registry.register("pollux", Pollux, op="gated_delta", config=PolluxConfig)
