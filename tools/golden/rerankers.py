"""A decoder that reranks: Qwen3-Reranker's body with a tokenizer of its kind, as it was published, as a classifier of one
label, and as GGUF by llama.cpp's own converter, which also makes the file of modern-bert-reranker.

  python rerankers.py LLAMA_CPP     LLAMA_CPP: its source, with conversion/ and gguf-py/

`texts.json` has, for pairs of texts and instructions, the ids of the prompt and the score, as the model's card computes
them with transformers in f32: prefix, pair and suffix are tokenized one by one, and the score is the softmax of the logits
of "no" and "yes". The classifier's row is the difference of both, so it has the same scores.
"""

import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [sys.argv[1], os.path.join(sys.argv[1], "gguf-py")]

from cases import MODELS  # noqa: E402

import conversion  # noqa: E402
import gguf  # noqa: E402
import torch  # noqa: E402
from folders import load, old_style, randomize, small, write  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers  # noqa: E402
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM  # noqa: E402

NAME = "qwen3-reranker"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WORDS = ["<think>", "</think>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
MERGES = [("n", "o"), ("y", "e"), ("ye", "s"), ("t", "h"), ("th", "e"), ("Ġ", "a"), ("u", "e"), ("Q", "ue")]
PREFIX = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
SUFFIX = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
PAIRS = [
    ("where is Bern?", "Bern is the capital of Switzerland.", None),
    ("where is Bern?", "A dog runs.\n\nIt is yes or no.", None),
    ("", "Été: 日本, 12345", None),
    ("no", " yes ", "Find the other word"),
    ("who\nruns", "", "Judge\n\nthe pace: "),
]


def tokenizer():
    pieces = sorted(pre_tokenizers.ByteLevel.alphabet()) + [a + b for a, b in MERGES]
    t = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, MERGES))
    t.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(SPLIT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    t.decoder = decoders.ByteLevel()
    t.add_special_tokens([AddedToken(x, normalized=False) for x in SPECIAL])
    t.add_tokens([AddedToken(x, normalized=False) for x in WORDS])
    return t


def say_scores(folder):
    t = AutoTokenizer.from_pretrained(folder)
    m = load(folder)
    yes, no = t.convert_tokens_to_ids("yes"), t.convert_tokens_to_ids("no")
    ids = lambda text: t.encode(text, add_special_tokens=False)
    cases = []
    for query, document, instruction in PAIRS:
        pair = f"<Instruct>: {instruction or INSTRUCTION}\n<Query>: {query}\n<Document>: {document}"
        prompt = ids(PREFIX) + ids(pair) + ids(SUFFIX)
        with torch.no_grad():
            logits = m(torch.tensor([prompt])).logits[0, -1]
        score = torch.log_softmax(torch.stack([logits[no], logits[yes]]), 0)[1].exp()
        cases.append(
            {"texts": [query, document], "instruction": instruction, "ids": prompt, "score": float(score)}
            | {"logits": [float(logits[yes]), float(logits[no])]}
        )
    with open(os.path.join(folder, "texts.json"), "w") as f:
        lines = ",\n  ".join(json.dumps(case, ensure_ascii=False) for case in cases)
        f.write(f'{{"tokens": [{yes}, {no}],\n "pairs": [\n  {lines}]}}\n')
    return m, yes, no


def classifier(m, yes, no):
    """The folder for AutoModelForSequenceClassification."""
    name, source = "qwen3-classifier", os.path.join(MODELS, NAME)
    folder = os.path.join(MODELS, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    tensors = load_file(os.path.join(source, "model.safetensors"))
    head = m.lm_head.weight
    tensors["score.weight"] = (head[yes] - head[no]).detach()[None]
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    with open(os.path.join(source, "config.json")) as f:
        config = json.load(f)
    config |= {"architectures": ["Qwen3ForSequenceClassification"], "id2label": {"0": "LABEL_0"}}
    with open(os.path.join(folder, "config.json"), "w") as f:
        f.write(json.dumps(config, indent=1) + "\n")


def no_vocab(model):
    model.gguf_writer.add_tokenizer_model("no_vocab")


def converted(name):
    with tempfile.TemporaryDirectory() as place:
        folder = shutil.copytree(os.path.join(MODELS, name), os.path.join(place, name))
        hparams = conversion.ModelBase.load_hparams(Path(folder), False)
        cls = conversion.get_model_class(conversion.get_model_architecture(hparams, conversion.ModelType.TEXT))
        cls.get_vocab_base_pre = lambda *_: "qwen2"
        if not os.path.exists(os.path.join(folder, "tokenizer.json")):
            cls.set_vocab = no_vocab
        with torch.inference_mode():
            cls(Path(folder), gguf.LlamaFileType.MOSTLY_BF16, Path(MODELS, name + ".gguf"), eager=True,
                model_name=name, hparams=hparams).write()  # fmt: skip


def main():
    t = tokenizer()
    config = small(Qwen3Config, hidden=32, ffn=32, heads=2, kv_heads=1, head_dim=24, eps=1e-6, tied=True, layers=2)
    config.vocab_size = t.get_vocab_size()
    config.max_position_embeddings = 512
    config.bos_token_id = config.eos_token_id = t.token_to_id(SPECIAL[0])
    folder = write(NAME, randomize(Qwen3ForCausalLM(config), 131), "bf16", old_style)
    t.save(os.path.join(folder, "tokenizer.json"))
    names = {"eos_token": SPECIAL[0], "pad_token": SPECIAL[0], "tokenizer_class": "PreTrainedTokenizerFast"}
    with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
        f.write(json.dumps(names, indent=1) + "\n")
    classifier(*say_scores(folder))
    converted(NAME)
    converted("modern-bert-reranker")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
