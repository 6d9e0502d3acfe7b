"""Acme's model: a definition that is not in transformers, and the adapter for the engine."""

from switchrail.engine.models.convolution import SHORT_CONV
from switchrail.engine.models.families import Family
from switchrail.engine.models.softmax import SOFTMAX
from transformers import AutoConfig, AutoModelForCausalLM, Lfm2Config, Lfm2ForCausalLM


class AcmeHybridConfig(Lfm2Config):
    """The configuration of Acme's model."""

    model_type = "acme_hybrid"


class AcmeHybridForCausalLM(Lfm2ForCausalLM):
    """The definition of Acme's model."""

    config_class = AcmeHybridConfig


AutoConfig.register("acme_hybrid", AcmeHybridConfig, exist_ok=True)
AutoModelForCausalLM.register(AcmeHybridConfig, AcmeHybridForCausalLM, exist_ok=True)

FAMILY = Family(
    module="transformers.models.lfm2.modeling_lfm2",
    mixers={"full_attention": {"self_attn": SOFTMAX}, "short_conv": {"conv": SHORT_CONV}},
)
