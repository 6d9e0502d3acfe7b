"""Draft heads of models, for multi-token prediction (MTP).

A head has one or more steps, counted from 0. Each step has layers with caches or states, and runs one entry
per token. Entry i of step 0 is computed from the model's last hidden state at token i and from token i + 1.
Entry i of a later step k is computed from step k - 1's result at entry i and from token i + 1 + k
(DeepSeek-V3, arXiv 2412.19437, section 2.2). With n the newest token's index, step k drafts token n + 1 + k;
the last step also drafts all further tokens.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import torch
from torch import nn

from switchrail._core import Layout
from switchrail.engine.files import check_names, read_tensors
from switchrail.engine.models.families import Family
from switchrail.errors import CheckpointError


class MtpStep(nn.Module):
    """One step of a head: joins hidden states with the embeddings of later tokens, then runs layers."""

    def __init__(
        self,
        embedding_norm: nn.Module,
        hidden_norm: nn.Module,
        projection: nn.Module,
        layers: Iterable[nn.Module],
        norm: nn.Module,
    ) -> None:
        super().__init__()
        self.embedding_norm = embedding_norm
        self.hidden_norm = hidden_norm
        self.projection = projection
        self.layers = nn.ModuleList(layers)
        self.norm = norm

    def forward(
        self,
        embeddings: torch.Tensor,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        **kwargs: Any,
    ) -> torch.Tensor:
        """Run entries of sequences.

        Args:
            embeddings: [B, T, hidden], the embeddings of the tokens that entries are joined with.
            hidden_states: [B, T, hidden], the results of the model or of the previous step.
            position_embeddings: Cosines and sines of the entries' positions.
            **kwargs: Other arguments of the decoder layers.

        Returns:
            [B, T, hidden], for the model's head.
        """
        joined = torch.cat((self.embedding_norm(embeddings), self.hidden_norm(hidden_states)), dim=-1)
        x = self.projection(joined)
        for layer in self.layers:
            x = layer(x, position_embeddings=position_embeddings, **kwargs)
        return cast("torch.Tensor", self.norm(x))


class QwenHead(nn.Module):
    """The head of Qwen3-Next and Qwen3.5, with the names of published weights (`mtp.`).

    Each step has a layer of its own. The steps share everything else.
    """

    def __init__(self, model: Any, drafts: Sequence[Layout]) -> None:
        """Create the head with the classes of a model's layers.

        Args:
            model: The model with its head.
            drafts: The layout of each step.
        """
        super().__init__()
        decoder, config = model.get_decoder(), copy.deepcopy(model.config.get_text_config())
        config.layer_types = [
            "full_attention" if layer.kind == "full_attention" else "linear_attention"
            for draft in drafts
            for layer in draft.layers
        ]
        config.num_hidden_layers = len(config.layer_types)
        config.decoder_sparse_step, config.mlp_only_layers = 1, []  # experts in all layers or in none
        make_norm = type(decoder.norm)
        size, eps = config.hidden_size, config.rms_norm_eps
        self.pre_fc_norm_embedding = make_norm(size, eps=eps)
        self.pre_fc_norm_hidden = make_norm(size, eps=eps)
        self.fc = nn.Linear(2 * size, size, bias=False)
        make_layer = type(decoder.layers[0])
        self.layers = nn.ModuleList(make_layer(config, i) for i in range(config.num_hidden_layers))
        self.norm = make_norm(size, eps=eps)

    def steps(self) -> list[MtpStep]:
        """The steps."""
        front = self.pre_fc_norm_embedding, self.pre_fc_norm_hidden, self.fc
        return [MtpStep(*front, [layer], self.norm) for layer in self.layers]


def _qwen_skeleton(model: Any, drafts: Sequence[Layout]) -> QwenHead:
    with torch.device("meta"):
        return QwenHead(model, drafts)


def _qwen(path: Path, model: Any, drafts: Sequence[Layout]) -> list[MtpStep]:
    head = _qwen_skeleton(model, drafts)
    found = join_experts(read_tensors(path, "mtp."))
    wanted = head.state_dict()
    both = wanted.keys() & found.keys()
    problems = {
        "missing": wanted.keys() - found.keys(),
        "unexpected": found.keys() - wanted.keys(),
        "of another shape": {name for name in both if found[name].shape != wanted[name].shape},
    }
    check_names("the weights of the MTP head", path, problems)
    head.load_state_dict({name: found[name].to(model.dtype) for name in wanted}, assign=True)
    return head.steps()


def join_experts(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Stack the published weights of single experts into the tensors of transformers' modules."""
    found, experts = dict[str, torch.Tensor](), dict[str, dict[int, dict[str, torch.Tensor]]]()
    for name, value in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            found[name] = value
        else:
            experts.setdefault(match[1], {}).setdefault(int(match[2]), {})[match[3]] = value
    for name, several in experts.items():
        parts = [several[number] for number in sorted(several)]
        if any(part.keys() != {"gate", "up", "down"} for part in parts):
            raise CheckpointError(
                f"{name} has experts without gate_proj, up_proj or down_proj", missing=(name,)
            )
        gate_up = [torch.cat((part["gate"], part["up"])) for part in parts]
        found[f"{name}.gate_up_proj"] = torch.stack(gate_up)
        found[f"{name}.down_proj"] = torch.stack([part["down"] for part in parts])
    return found


_EXPERT: Final = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")


def _mtp_model(path: Path) -> Any:
    """Transformers' class for MTP heads.

    Raises:
        CheckpointError: This version of transformers has no such class.
    """
    try:
        from transformers.modeling_layers import MtpModel
    except ImportError as error:
        raise CheckpointError(
            f"the MTP head in {path} needs a transformers with MtpModel: {error}", path=str(path)
        ) from error
    return MtpModel


def _steps_of(head: Any) -> list[MtpStep]:
    """The steps of a head of transformers' class."""
    return [
        MtpStep(layer.enorm, layer.hnorm, layer.eh_proj, [layer.mtp_block], layer.post_norm)
        for layer in head.layers
    ]


def _deepseek(path: Path, model: Any, drafts: Sequence[Layout]) -> list[MtpStep]:
    kind = _mtp_model(path)
    first = model.config.num_hidden_layers
    model._keys_to_ignore_on_load_unexpected = [
        rf"^model\.layers\.{first + step}\." for step in range(len(drafts))
    ]
    try:
        head = kind.from_pretrained(model)
    except (RuntimeError, ValueError) as error:
        raise CheckpointError(f"the MTP head in {path} can't be loaded: {error}", path=str(path)) from error
    return _steps_of(head)


def _ling(path: Path, model: Any, drafts: Sequence[Layout]) -> list[MtpStep]:
    """Like `_deepseek`, with the layer names and a renaming of weights that transformers lacks for Ling."""
    from transformers.core_model_loading import WeightRenaming

    _name_ling_layers(model, drafts)
    model._weight_conversions = [
        *(getattr(model, "_weight_conversions", None) or ()),
        WeightRenaming(r"\.mtp_block\.final_layernorm\.", ".post_norm."),
    ]
    return _deepseek(path, model, drafts)


def _name_ling_layers(model: Any, drafts: Sequence[Layout]) -> None:
    """Add the names of a Ling head's layers, which published configs lack."""
    model.config.mtp_layer_types = ["full_attention"] * len(drafts)
    model.config.mtp_mlp_layer_types = ["sparse"] * len(drafts)


_HEADS: Final[Mapping[str, Callable[[Path, Any, Sequence[Layout]], list[MtpStep]]]] = {
    "qwen3_next": _qwen,
    "qwen3_5_text": _qwen,
    "qwen3_5_moe_text": _qwen,
    "deepseek_v3": _deepseek,
    "bailing_hybrid": _ling,
}


def head_skeleton(path: Path, model: Any, drafts: Sequence[Layout]) -> list[MtpStep]:
    """The steps of a model's draft head without weights.

    Args:
        path: The checkpoint folder.
        model: The model, which may be without weights too.
        drafts: The layout of each step.

    Raises:
        CheckpointError: This version of transformers lacks the head's class.
    """
    load = _HEADS[drafts[0].model_type]
    if load is _qwen:
        return _qwen_skeleton(model, drafts).steps()
    if load is _ling:
        _name_ling_layers(model, drafts)
    with torch.device("meta"):
        return _steps_of(_mtp_model(path)(model, len(drafts)))


def load_head(path: Path, model: Any, drafts: Sequence[Layout]) -> list[MtpStep]:
    """Load the steps of a loaded model's draft head.

    Args:
        path: The checkpoint folder.
        model: The model with its head.
        drafts: The layout of each step.

    Raises:
        CheckpointError: Weights are missing, unexpected or of a wrong shape, or this version of transformers
            lacks the head's class.
    """
    steps = _HEADS[drafts[0].model_type](path, model, drafts)
    for step in steps:
        step.eval().requires_grad_(False).to(model.device)
    return steps


def step_family(family: Family) -> Family:
    """The family of a head's steps, given the model's family."""
    return replace(family, layers="layers")
