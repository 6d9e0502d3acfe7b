"""Multi-head latent attention over a paged cache of latents."""

from switchrail.ops.definition import PAGES, OpDefinition

DEFINITION = OpDefinition(
    op="mla",
    claims={"features": PAGES},
    steps=("plan_chunked_prefix",),
    arguments={
        "H": "heads",
        "D": "nope_size",
        "E": "rope_size",
        "R": "latent_size",
        "V": "value_size",
        "page": "page",
    },
    head_size=("L", "R"),
    heads=("H", None),
    sizes=({"H": 128, "D": 128, "R": 512, "E": 64, "L": 576, "V": 128},),
)

__all__ = ["DEFINITION"]
