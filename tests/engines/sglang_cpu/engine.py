"""Runs SGLang's Engine once: `engine.py REQUEST ANSWER`, two JSON files.

The request has the Engine's `options` and the `batches`, each with `prompts` of token ids and the number of
`new_tokens`. For each prompt, the answer has the new tokens, the number of prompt tokens that came from the
prefix cache, and the number of accepted draft tokens.
"""

import json
import sys
from pathlib import Path


def main():
    import sglang

    request = json.loads(Path(sys.argv[1]).read_text())
    engine = sglang.Engine(
        device="cpu",
        dtype="float16",
        disable_overlap_schedule=True,
        disable_cuda_graph=True,
        skip_tokenizer_init=True,
        grammar_backend="none",
        sampling_backend="pytorch",
        random_seed=0,
        log_level="info",
        **request["options"],
    )
    answers = []
    for batch in request["batches"]:
        params = {"max_new_tokens": batch["new_tokens"], "temperature": 0, "ignore_eos": True}
        outputs = engine.generate(input_ids=batch["prompts"], sampling_params=params)
        answers.append(
            [
                {
                    "tokens": one["output_ids"],
                    "cached": one["meta_info"]["cached_tokens"],
                    "accepted": one["meta_info"].get("spec_num_correct_drafts"),
                }
                for one in outputs
            ]
        )
    Path(sys.argv[2]).write_text(json.dumps(answers))
    engine.shutdown()


if __name__ == "__main__":  # SGLang's processes import this file
    main()
