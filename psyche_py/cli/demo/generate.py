"""Loads a checkpoint with transformers alone and lets it write: proof that it is an ordinary model.

    python generate.py CHECKPOINT PROMPT

Run as a script, in a process that imports nothing of this project.
"""

import os
import sys


def main() -> None:
    """Print the prompt and what the model makes of it."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint, prompt = sys.argv[1:3]
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    torch.manual_seed(0)
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        max_new_tokens=40,
        do_sample=True,
        top_k=40,
        pad_token_id=0,
    )
    print(tokenizer.decode(output[0], skip_special_tokens=True))


if __name__ == "__main__":
    main()
