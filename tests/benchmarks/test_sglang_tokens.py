"""Small CPU runs of the comparison of SGLang with transformers; transformers stands in for SGLang."""

import json

import pytest
from safetensors import safe_open

from benchmarks import sglang_tokens
from benchmarks.serving.trained import TRAINED, for_sglang
from tests.processes import command

STAND_IN = '''
"""The parts of SGLang that the comparison needs."""
import torch
from transformers import AutoModelForCausalLM

__version__ = "0"

class Engine:
    def __init__(self, model_path, wrong=0, **options):
        self.model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float32).eval()
        self.wrong = wrong

    @torch.inference_mode()
    def generate(self, input_ids, sampling_params, return_logprob=False, **more):
        return [self.one(ids, sampling_params["max_new_tokens"], return_logprob) for ids in input_ids]

    def one(self, prompt, new_tokens, scored):
        text = list(prompt)
        for _ in range(new_tokens):
            logits = self.model(torch.tensor([text])).logits[0]
            text.append(int(logits[-1].argmax()))
        found = {"cached_tokens": 0}
        if scored:
            scores, best = logits[:-1].log_softmax(-1), logits[:-1].argmax(-1)
            own = [(float(row[token]), token, None) for row, token in zip(scores, prompt[1:])]
            found["input_token_logprobs"] = [(None, prompt[0], None), *own]
            found["input_top_logprobs"] = [None, *([(0.0, int(token), None)] for token in best)]
        text[-1] += self.wrong
        return {"output_ids": text[len(prompt):], "meta_info": found}

    def shutdown(self):
        pass
'''


PROGRAM = """
import os, runpy, sys
sys.path.insert(0, {folder!r})
script, answers = sys.argv[1:]
sys.argv[:] = [script, str(os.open(f"/proc/{{os.environ['COMMAND_PROCESS']}}/fd/{{answers}}", os.O_WRONLY))]
runpy.run_path(script, run_name="__main__")
"""
"""Runs the peer's script. It writes its answers to descriptor `answers` of the process `COMMAND_PROCESS`."""


@pytest.fixture
def run(processes, tmp_path):
    """Runs the comparison with a stand-in for SGLang, and returns its exit status."""
    (tmp_path / "sglang.py").write_text(STAND_IN)
    python = tmp_path / "python"
    small = ["--prompts", "2", "--new-tokens", "3", "--way", "own"]
    with command(python, processes, PROGRAM.format(folder=str(tmp_path))):
        yield lambda **options: sglang_tokens.main([str(python), *small, "--options", json.dumps(options)])


def test_prompts_are_chosen_by_the_near_ties_of_transformers():
    expected = sglang_tokens.expect(3, 4, "cpu")
    passages = sglang_tokens.passages(3)
    assert [prompt in several for prompt, several in zip(expected.prompts, passages, strict=True)] == [
        True
    ] * 3
    firsts = zip(expected.prompts, expected.gaps, strict=True)
    assert all(min(gaps[len(prompt) - 1 :]) >= sglang_tokens.NEAR for prompt, gaps in firsts)


def test_equal_tokens_pass(run, capsys):
    assert run() == 0
    printed = capsys.readouterr().out
    assert "own, second run: 6 of 6 new tokens equal" in printed
    assert "distance of log-probabilities to float32 0.0000" in printed


def test_a_wrong_token_is_found(run, capsys):
    assert run(wrong=1) == 1
    assert (
        "4 of 6 new tokens equal; prompts that differ without a near tie: [0, 1]" in capsys.readouterr().out
    )


def test_the_checkpoint_has_experts_in_every_layer_and_a_head(tmp_path):
    folder = for_sglang(tmp_path / "new")
    config = json.loads((folder / "config.json").read_text())
    assert (config["decoder_sparse_step"], config["tie_word_embeddings"]) == (1, False)
    with (
        safe_open(folder / "model.safetensors", "pt") as file,
        safe_open(TRAINED / "model.safetensors", "pt") as old,
    ):
        assert file.get_tensor("lm_head.weight").equal(old.get_tensor("model.embed_tokens.weight"))
        routed = [name for name in file.keys() if name.endswith(".mlp.gate.weight") and "mtp" not in name]  # noqa: SIM118
    assert len(routed) == config["num_hidden_layers"]
