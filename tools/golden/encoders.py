"""Encoders and rerankers with a class head: BERT and XLM-RoBERTa, as folders and as GGUF.

  python encoders.py [case ...]     default: every case

The reference is transformers, in f32 with eager attention: the last hidden states of the base model, pooled and divided
by their 2-norm; of a classifier the logistic function of its logit for pairs of texts. `texts.json` in a folder has the
ids of texts and pairs, by transformers' tokenizer of that folder, and the scores of the pairs. The GGUF files are written
here, with the names and keys that llama.cpp's converter gives them.
"""

import json
import os
import shutil
import sys
import tempfile

from cases import F32_TOLERANCE, MODELS, VERSIONS, VOCAB, find, record

import numpy as np
import sentencepiece
import torch
from embedding_models import random_sequences
from folders import edit_json, randomize
from gguf import GGUFWriter, PoolingType
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Gemma3TextConfig,
    Gemma3TextModel,
    ModernBertConfig,
    ModernBertForSequenceClassification,
    ModernBertModel,
    NomicBertConfig,
    NomicBertModel,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
    XLMRobertaModel,
)

TEXTS = [
    "a dog runs",
    "The CAFÉ is near, isn't it?",
    "",
    "  two   spaces ",
    "日本 and ﬁne ½",
    "unbelievable [MASK] </s> xyzzy",
]
PAIRS = [["who runs?", "a dog runs"], ["who runs?", "the sun is far and the cafe is near"], ["x", "the"], ["", "dog"]]


def word_piece():
    letters = "abcdefghijklmnopqrstuvwxyz"
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{c}" for c in letters)]
    pieces += ["the", "dog", "run", "##ing", ",", "?", "日"]
    assert len(pieces) == VOCAB
    t = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=True)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.decoder = decoders.WordPiece()
    t.add_special_tokens(pieces[:5])
    t.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "unk_token": "[UNK]", "pad_token": "[PAD]"}
    return t, names | {"mask_token": "[MASK]"}, "BertTokenizer"


def field(proto, wanted):
    """The first bytes field with this number in a protobuf message."""
    at = 0

    def number():
        nonlocal at
        value = shift = 0
        while True:
            at += 1
            value |= (proto[at - 1] & 127) << shift
            if proto[at - 1] < 128:
                return value
            shift += 7

    while at < len(proto):
        key = number()
        if key & 7 == 2:
            size = number()
            at += size
            if key >> 3 == wanted:
                return proto[at - size : at]
        elif key & 7 == 0:
            number()
        else:
            at += {1: 8, 5: 4}[key & 7]
    raise KeyError(wanted)


def unigram():
    with tempfile.TemporaryDirectory() as folder:
        rules = os.path.join(folder, "rules.tsv")
        with open(rules, "w") as f:  # a small table in place of NFKC's
            f.write("FB01\t66 69\nBD\t31 2F 32\nC9\t45\n3000\t20\n")
        text = os.path.join(folder, "text")
        with open(text, "w") as f:
            f.write("\n".join(["a dog runs", "the cafe is near", "who runs?", "the sun is far", "it isn't fine"] * 20))
        sentencepiece.SentencePieceTrainer.train(
            input=text,
            model_prefix=os.path.join(folder, "m"),
            vocab_size=28,
            model_type="unigram",
            normalization_rule_tsv=rules,
            minloglevel=2,
        )
        with open(os.path.join(folder, "m.model"), "rb") as f:
            proto = f.read()
    sp = sentencepiece.SentencePieceProcessor(model_proto=proto)
    pieces = [(p, 0.0) for p in ("<s>", "<pad>", "</s>", "<unk>")]
    pieces += [(sp.IdToPiece(i), sp.GetScore(i)) for i in range(3, sp.vocab_size())]
    pieces.append(("<mask>", 0.0))
    assert len(pieces) <= VOCAB, len(pieces)
    charsmap = field(field(proto, 3), 2)  # normalizer_spec.precompiled_charsmap
    t = Tokenizer(models.Unigram(pieces, 3, False))
    t.normalizer = normalizers.Precompiled(charsmap)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    t.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    names |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
    return t, names, "XLMRobertaTokenizer", pieces, charsmap


def sizes(layers=2, **more):
    return {
        "vocab_size": VOCAB,
        "hidden_size": 36,
        "num_hidden_layers": layers,
        "num_attention_heads": 3,
        "intermediate_size": 52,
    } | more


def write(name, m, tokenizer, pooling):
    folder = os.path.join(MODELS, name)
    shutil.rmtree(folder, ignore_errors=True)
    m.to(torch.bfloat16).save_pretrained(folder)
    edit_json(os.path.join(folder, "config.json"), lambda c: c.pop("transformers_version"))
    if tokenizer:
        tokenizer[0].save(os.path.join(folder, "tokenizer.json"))
        with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
            json.dump(tokenizer[1] | {"tokenizer_class": "PreTrainedTokenizerFast"}, f, indent=1)
    if pooling:
        os.makedirs(os.path.join(folder, "1_Pooling"))
        with open(os.path.join(folder, "1_Pooling", "config.json"), "w") as f:
            json.dump({"word_embedding_dimension": m.config.hidden_size, f"pooling_mode_{pooling}": True}, f)
        kinds = ["Transformer", "Pooling", "Normalize"]
        modules = [{"path": f"{i}_{k}" if i else "", "type": f"sentence_transformers.models.{k}"} for i, k in enumerate(kinds)]
        with open(os.path.join(folder, "modules.json"), "w") as f:
            json.dump(modules, f, indent=1)
    return folder


def say_texts(folder, scores):
    t = AutoTokenizer.from_pretrained(folder)
    out = {"texts": [{"text": x, "ids": t(x)["input_ids"]} for x in TEXTS], "pairs": []}
    m = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval() if scores else None
    for pair in PAIRS:
        e = t(*pair, return_token_type_ids=True)
        case = {"texts": pair, "ids": e["input_ids"], "types": e["token_type_ids"]}
        if m is not None:
            with torch.no_grad():
                logit = m(**{k: torch.tensor([v]) for k, v in e.items()}).logits
            case["score"] = float(torch.sigmoid(logit)[0, 0])
        out["pairs"].append(case)
    with open(os.path.join(folder, "texts.json"), "w") as f:
        f.write(json.dumps(out, indent=1, ensure_ascii=False) + "\n")


def pooled(m, sequences, pooling):
    with torch.no_grad():
        rows = [m(torch.tensor([s])).last_hidden_state[0] for s in sequences]
    rows = torch.stack([x[0] if pooling == "cls_token" else x.mean(0) for x in rows])
    return torch.nn.functional.normalize(rows, dim=-1)


POOLINGS = {"cls_token": "first", "mean_tokens": "mean"}


def embedding(name, cls, config, tokenizer, seed, pooling, covers):
    folder = write(name, randomize(cls(config), seed), tokenizer, pooling)
    say_texts(folder, False)
    m = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sequences = [[t % (VOCAB - 4) + 4 for t in s] for s in random_sequences(seed)]
    source = f"transformers {cls.__name__} loaded from the folder, f32, eager attention; pooled, L2-normalised ({VERSIONS})"
    rows = pooled(m, sequences, pooling)
    record(
        name, folder, config.model_type, "hf-bf16", covers, sequences, rows, source, "transformers", F32_TOLERANCE,
        pooling=POOLINGS[pooling],
    )  # fmt: skip


def say_vectors(folder, sequences, rows):
    vectors = [{"ids": s, "vector": [float(v) for v in row]} for s, row in zip(sequences, rows)]
    with open(os.path.join(folder, "texts.json"), "w") as f:
        f.write(json.dumps({"vectors": vectors}) + "\n")


def ids_alone(name, cls, config, seed, pooling, covers, dense=(), normalize=True):
    """A folder without a tokenizer. `dense`: widths of the dense layers after pooling."""
    folder = write(name, randomize(cls(config), seed), None, pooling)
    m = AutoModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    sequences = [[t % (VOCAB - 4) + 4 for t in s] for s in random_sequences(seed)]
    rows = pooled(m, sequences, pooling)
    source = f"transformers {cls.__name__} loaded from the folder, f32, eager attention; pooled, L2-normalised ({VERSIONS})"
    record(
        name, folder, config.model_type, "hf-bf16", covers, sequences, rows, source, "transformers", F32_TOLERANCE,
        pooling=POOLINGS[pooling],
    )  # fmt: skip
    if not normalize:
        edit_json(os.path.join(folder, "modules.json"), lambda modules: modules.pop())
        with torch.no_grad():
            say_vectors(folder, sequences, [m(torch.tensor([s])).last_hidden_state[0].mean(0) for s in sequences])
    if not dense:
        return
    with torch.no_grad():
        x = torch.stack([m(torch.tensor([s])).last_hidden_state[0].mean(0) for s in sequences])
    with open(os.path.join(folder, "modules.json")) as f:
        modules = json.load(f)
    for at, width in enumerate(dense):
        path = f"{at + 2}_Dense"
        os.makedirs(os.path.join(folder, path))
        w = torch.randn(width, x.shape[1]).mul(x.shape[1] ** -0.5).bfloat16()
        config = {"in_features": x.shape[1], "out_features": width, "bias": False}
        config["activation_function"] = "torch.nn.modules.linear.Identity"
        with open(os.path.join(folder, path, "config.json"), "w") as f:
            json.dump(config, f)
        save_file({"linear.weight": w}, os.path.join(folder, path, "model.safetensors"), {"format": "pt"})
        modules.insert(-1, {"path": path, "type": "sentence_transformers.models.Dense"})
        x = x @ w.float().T
    with open(os.path.join(folder, "modules.json"), "w") as f:
        json.dump(modules, f, indent=1)
    x = torch.nn.functional.normalize(x, dim=-1)
    say_vectors(folder, sequences, x)


def scored_ids(name, cls, config, seed):
    """A reranker without a tokenizer."""
    config.num_labels = 1
    folder = write(name, randomize(cls(config), seed), None, None)
    m = cls.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    pairs = []
    for ids in random_sequences(seed):
        with torch.no_grad():
            pairs.append({"ids": ids, "score": float(torch.sigmoid(m(torch.tensor([ids])).logits)[0, 0])})
    with open(os.path.join(folder, "texts.json"), "w") as f:
        f.write(json.dumps({"pairs": pairs}) + "\n")


def reranker(name, cls, config, tokenizer, seed):
    config.num_labels = 1
    say_texts(write(name, randomize(cls(config), seed), tokenizer, None), True)


BERT_NAMES = {
    "embeddings.word_embeddings": "token_embd",
    "embeddings.position_embeddings": "position_embd",
    "embeddings.token_type_embeddings": "token_types",
    "embeddings.LayerNorm": "token_embd_norm",
    "classifier.dense": "cls",
    "classifier.out_proj": "cls.output",
    # BERT's pooler: llama.cpp's converter omits it, but llama.cpp uses it if a file has it.
    "pooler.dense": "cls",
    "classifier": "cls.output",
}
BERT_LAYER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}


def writer(path, arch, c, pooling, context, eps=None):
    """A GGUF writer with the sizes of `c`."""
    w = GGUFWriter(path, arch)
    w.add_name(os.path.basename(path).removesuffix(".gguf"))
    w.add_context_length(context)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    if eps is not None:
        w.add_layer_norm_eps(eps)
    w.add_causal_attention(False)
    w.add_pooling_type(PoolingType(pooling))
    return w


def counterpart(name, auto, pooling, covers):
    """Writes the folder as GGUF: norms and biases in F32, matrices in F16 where exact, otherwise in F32."""
    folder = os.path.join(MODELS, name)
    m = auto.from_pretrained(folder, dtype=torch.float32)
    c, path = m.config, os.path.join(MODELS, name + ".gguf")
    offset = 0 if c.model_type == "bert" else c.pad_token_id + 1
    w = writer(path, "bert", c, pooling, c.max_position_embeddings - offset, c.layer_norm_eps)
    w.add_token_type_count(c.type_vocab_size)
    if c.model_type == "bert":
        pieces = sorted(word_piece()[0].get_vocab().items(), key=lambda x: x[1])
        def phantom(p):
            return p if p.startswith("[") else p[2:] if p.startswith("##") else "\u2581" + p
        w.add_tokenizer_model("bert")
        w.add_tokenizer_pre("default")
        w.add_token_list([phantom(p) for p, _ in pieces])
        w.add_token_types([3 if p.startswith("[") else 1 for p, _ in pieces])
        w.add_unk_token_id(1)
        w.add_sep_token_id(3)
        w.add_pad_token_id(0)
        w.add_bos_token_id(2)
        w.add_mask_token_id(4)
    else:
        *_, pieces, charsmap = unigram()
        w.add_tokenizer_model("t5")
        w.add_tokenizer_pre("default")
        w.add_token_list([p for p, _ in pieces])
        w.add_token_scores([s for _, s in pieces])
        w.add_token_types([2 if p == "<unk>" else 3 if p.startswith("<") else 1 for p, _ in pieces])
        w.add_add_space_prefix(True)
        w.add_remove_extra_whitespaces(True)
        w.add_precompiled_charsmap(charsmap)
        w.add_bos_token_id(0)
        w.add_eos_token_id(2)
        w.add_unk_token_id(3)
        w.add_sep_token_id(2)
        w.add_pad_token_id(1)
        w.add_mask_token_id(len(pieces) - 1)
        w.add_add_bos_token(True)
        w.add_add_eos_token(True)
    for own, tensor in m.state_dict().items():
        own = own.removeprefix("bert.").removeprefix("roberta.")
        if own.startswith("embeddings.position_ids") or own.startswith("pooler.") and auto is AutoModel:
            continue
        part, kind = own.rsplit(".", 1)
        if part.startswith("encoder.layer."):
            _, _, n, part = part.split(".", 3)
            part = f"blk.{n}.{BERT_LAYER[part]}"
        else:
            part = BERT_NAMES[part]
        x = tensor.numpy()
        if part == "position_embd":
            x = x[offset:]
        half = x.astype(np.float16)
        exact = x.ndim == 2 and "token_types" not in part and bool((half.astype(np.float32) == x).all())
        w.add_tensor(f"{part}.{kind}", half if exact else np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    if os.path.exists(os.path.join(folder, "modules.json")):
        case = find(name)
        record(
            name + "-gguf", path, "bert", "gguf-f16", covers, case["sequences"], torch.from_numpy(
                np.fromfile(os.path.join(MODELS, name + ".f32"), "<f4").reshape(len(case["sequences"]), -1)
            ), case["source"], "transformers", F32_TOLERANCE, pooling=case["pooling"], values=case["embedding"],
        )  # fmt: skip


GEMMA = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.o_proj": "attn_output", "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
MODERN_LAYER = {
    "attn_norm": "attn_norm", "attn.Wqkv": "attn_qkv", "attn.Wo": "attn_output", "mlp_norm": "ffn_norm",
    "mlp.Wi": "ffn_up", "mlp.Wo": "ffn_down",
}  # fmt: skip
NOMIC = GEMMA | {"post_attention_layernorm": "attn_output_norm", "post_mlp_layernorm": "layer_output_norm"}
OUTSIDE = {
    "embed_tokens": "token_embd", "norm": "output_norm", "embeddings.tok_embeddings": "token_embd",
    "embeddings.norm": "token_embd_norm", "final_norm": "output_norm",
}  # fmt: skip


def rotated_counterpart(name, arch, pooling):
    """Writes the folder as GGUF, without a tokenizer. Nomic's q, k and v become one matrix."""
    folder = os.path.join(MODELS, name)
    m = AutoModel.from_pretrained(folder, dtype=torch.float32)
    c, path = m.config, os.path.join(MODELS, name + ".gguf")
    w = writer(path, arch, c, pooling, c.max_position_embeddings)
    w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("none")
    layer, state = NOMIC, dict(m.state_dict())
    if arch == "gemma-embedding":
        layer = GEMMA
        w.add_layer_norm_rms_eps(c.rms_norm_eps)
        w.add_head_count_kv(c.num_key_value_heads)
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
        w.add_attention_scale(c.query_pre_attn_scalar**-0.5)
        w.add_rope_freq_base(c.rope_parameters["full_attention"]["rope_theta"])
        w.add_sliding_window((c.sliding_window - 1) * 2)
        w.add_sliding_window_pattern(2)
        for n in range(2, 4):
            state[f"dense_{n}.weight"] = load_file(os.path.join(folder, f"{n}_Dense", "model.safetensors"))["linear.weight"].float()
    elif arch == "modern-bert":
        layer = MODERN_LAYER
        w.add_layer_norm_eps(c.norm_eps)
        w.add_rope_freq_base(c.rope_parameters["full_attention"]["rope_theta"])
        w.add_rope_freq_base_swa(c.rope_parameters["sliding_attention"]["rope_theta"])
        w.add_sliding_window(c.local_attention)
        w.add_sliding_window_pattern(3)
    else:
        w.add_layer_norm_eps(c.layer_norm_eps)
        w.add_rope_freq_base(c.rope_parameters["rope_theta"])
        for n in range(c.num_hidden_layers):
            parts = [state.pop(f"layers.{n}.self_attn.{p}_proj.weight") for p in "qkv"]
            state[f"blk.{n}.attn_qkv.weight"] = torch.cat(parts)
    for own, tensor in state.items():
        part, kind = own.rsplit(".", 1)
        if part.startswith("layers."):
            _, n, part = part.split(".", 2)
            part = f"blk.{n}.{layer[part]}"
        else:
            part = (OUTSIDE | BERT_NAMES).get(part, part)
        x = tensor.numpy()
        if arch == "gemma-embedding" and part.endswith("norm"):
            x = x + np.float32(1)
        half = x.astype(np.float16)
        exact = x.ndim == 2 and bool((half.astype(np.float32) == x).all())
        w.add_tensor(f"{part}.{kind}", half if exact else np.ascontiguousarray(x))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    case = find(name)
    rows = np.fromfile(os.path.join(MODELS, name + ".f32"), "<f4").reshape(len(case["sequences"]), -1)
    record(
        name + "-gguf", path, arch, "gguf-f16", "the same as GGUF", case["sequences"], torch.from_numpy(rows),
        case["source"], "transformers", F32_TOLERANCE, pooling=case["pooling"], values=case["embedding"],
    )  # fmt: skip


MODERN = dict(
    max_position_embeddings=128, local_attention=8, global_attn_every_n_layers=3, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, cls_token_id=1, sep_token_id=2,
)  # fmt: skip
BERT = dict(type_vocab_size=2, max_position_embeddings=70, pad_token_id=0)
ROBERTA = dict(type_vocab_size=1, max_position_embeddings=72, pad_token_id=1, layer_norm_eps=1e-5)
CASES = {
    "bert-embedding": lambda: embedding(
        "bert-embedding", BertModel, BertConfig(**sizes(**BERT)), word_piece(), 90, "cls_token",
        "BERT, names without `bert.`; learned positions, GELU with erf, the first token's state; a pooler that is not used",
    ),
    "bert-reranker": lambda: reranker(
        "bert-reranker", BertForSequenceClassification, BertConfig(**sizes(1, **BERT)), word_piece(), 91
    ),
    "xlm-roberta-embedding": lambda: embedding(
        "xlm-roberta-embedding", XLMRobertaModel, XLMRobertaConfig(**sizes(**ROBERTA)), unigram(), 92, "mean_tokens",
        "XLM-RoBERTa: positions behind that of padding, one type, the mean of all states",
    ),
    "xlm-roberta-reranker": lambda: reranker(
        "xlm-roberta-reranker", XLMRobertaForSequenceClassification, XLMRobertaConfig(**sizes(1, **ROBERTA)), unigram(), 93
    ),
    "modern-bert": lambda: ids_alone(
        "modern-bert", ModernBertModel, ModernBertConfig(**sizes(4, **MODERN)), 94, "cls_token",
        "ModernBERT: norms before each part but the first, GeGLU with erf, symmetric windows with their own rotation",
    ),
    "modern-bert-reranker": lambda: scored_ids(
        "modern-bert-reranker", ModernBertForSequenceClassification,
        ModernBertConfig(**sizes(2, classifier_pooling="mean", **MODERN)), 95,
    ),
    "nomic-bert": lambda: ids_alone(
        "nomic-bert", NomicBertModel, NomicBertConfig(**sizes(2, max_position_embeddings=128)), 96, "mean_tokens",
        "Nomic's BERT: rotations of base 1000, SwiGLU, two types of tokens", normalize=False,
    ),
    "gemma-embedding": lambda: ids_alone(
        "gemma-embedding", Gemma3TextModel,
        Gemma3TextConfig(**sizes(3, num_key_value_heads=1, head_dim=12, query_pre_attn_scalar=16, sliding_window=8,
            max_position_embeddings=128, use_bidirectional_attention=True,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"])),
        97, "mean_tokens",
        "EmbeddingGemma: a Gemma 3 that sees both ways, symmetric windows; two products behind the mean",
        dense=(52, 36),
    ),
    "modern-bert-gguf": lambda: rotated_counterpart("modern-bert", "modern-bert", 2),
    "nomic-bert-gguf": lambda: rotated_counterpart("nomic-bert", "nomic-bert", 1),
    "gemma-embedding-gguf": lambda: rotated_counterpart("gemma-embedding", "gemma-embedding", 1),
    "bert-embedding-gguf": lambda: counterpart("bert-embedding", AutoModel, 2, "BERT, WordPiece with phantom spaces"),
    "xlm-roberta-embedding-gguf": lambda: counterpart(
        "xlm-roberta-embedding", AutoModel, 1, "XLM-RoBERTa as `bert`, without the rows of padding; Unigram"
    ),
    "bert-reranker-gguf": lambda: counterpart("bert-reranker", AutoModelForSequenceClassification, 4, ""),
    "xlm-roberta-reranker-gguf": lambda: counterpart("xlm-roberta-reranker", AutoModelForSequenceClassification, 4, ""),
}  # fmt: skip

if __name__ == "__main__":
    torch.set_num_threads(1)
    for case in sys.argv[1:] or CASES:
        CASES[case]()
