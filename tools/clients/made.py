"""Models for the agents' trials, made of SmolLM2-135M-Instruct.

`asked` is the model whole; its template shows it the question and little else. Agents send up to
20,000 tokens, and it was trained with 8,192.

`scripted` writes what it was told, whatever else stands in the prompt: reasoning and calls of a tool, then a text, or
another one if its template was shown a picture. It has SmolLM2's tokenizer and one layer that does nothing. The last
token alone says what comes next, so that any sampling gives the same.

`tower` is a part that sees for it. What it sees changes nothing but the prompt's length.
"""

import os

import gguf
import numpy as np
from trial import ROOT

TOWER = os.path.join(ROOT, "tests", "golden", "towers", "mistral3-f32.gguf")

CONTEXT = 131072
WIDTH = 256
END, QUOTE, BRACE = 2, 18, 109
"""Tokens of SmolLM2: <|im_end|>, a quotation mark, a closing brace."""
IMAGE = ["[IMG]", "[IMG_BREAK]", "[IMG_END]"]
"""Tokens of Pixtral, for pictures."""
LIKELY = {END: 12.0, QUOTE: 10.0, BRACE: 8.0}
"""Likely tokens outside of scripts, as when a schema allows none: a short object, then the end."""

# An agent may add text to a question.
ASKED = """{%- set ns = namespace(question='') %}
{%- for m in messages %}
{%- if m.role == 'user' and m.content %}{%- set ns.question = m.content[-200:] %}{%- endif %}
{%- endfor %}
{#- Answers may have a <tool_call>. #}{{- '<|im_start|>system\\nYou answer in one short sentence.' }}
{{- '<|im_end|>\\n<|im_start|>user\\n' + ns.question + '<|im_end|>\\n<|im_start|>assistant\\n' }}"""

# A prompt ends with the token that starts a script.
SCRIPTED = """{%- set ns = namespace(said=false, can=false, sees=false) %}
{%- for tool in tools or [] %}
{{- '<|im_start|>system\\n' + tool | tojson + '<|im_end|>\\n' }}
{%- if tool.function.name == '%TOOL%' %}{%- set ns.can = true %}{%- endif %}
{%- endfor %}
{%- for m in messages %}
{{- '<|im_start|>' + m.role + '\\n' }}
{%- if m.reasoning_content %}{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n' }}{%- endif %}
{%- if m.content is string %}{{- m.content }}
{%- else %}
{%- for part in m.content or [] %}
{%- if part.type == 'image' %}{{- '[IMG]' }}{%- set ns.sees = true %}{%- else %}{{- part.text }}{%- endif %}
{%- endfor %}
{%- endif %}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>{"name": ' + call.function.name | tojson + ', "arguments": ' + call.function.arguments | tojson }}
{{- '}</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- if m.role == 'tool' %}{%- set ns.said = true %}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{{- '<|begin_call|>' if ns.can and not ns.said else '<|begin_seen|>' if ns.sees else '<|begin_text|>' }}
{%- endif %}"""


def letters():
    """GPT-2's letter for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    strange = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(strange)) for byte in range(256)]


def pieces(text, taken):
    """Splits the text into tokens that are not in use yet."""
    table = letters()
    spelled = "".join(table[byte] for byte in text.encode())
    cut = []
    start = 0
    while start < len(spelled):
        end = start + 5
        while spelled[start:end] in taken and end < len(spelled):
            end += 1
        if spelled[start:end] in taken:  # at the text's end
            taken.remove(cut[-1])
            start -= len(cut.pop())
        cut.append(spelled[start:end])
        taken.add(cut[-1])
        start = end
    return cut


def copy(source, out, replaced, tensors):
    """A GGUF file with the source's metadata, some of it replaced, and these tensors, (name, data, type)."""
    writer = gguf.GGUFWriter(out, source.fields["general.architecture"].contents())
    for key, field in source.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        of = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        value = replaced[key] if key in replaced else field.contents()
        writer.add_key_value(key, value, kind, of)
    for name, data, kind in tensors:
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def asked(path, out):
    source = gguf.GGUFReader(path)
    tensors = [(tensor.name, sharper(tensor), tensor.tensor_type) for tensor in source.tensors]
    copy(source, out, {"tokenizer.chat_template": ASKED, "general.name": "smollm2"}, tensors)


def sharper(tensor):
    """Scales as if the temperature were a tenth: at 1, which agents ask for, this model's output often does not end."""
    return tensor.data * 10 if tensor.name == "output_norm.weight" else tensor.data


def scripted(path, out, tool, call, text, seen=""):
    """Makes a model that writes `call` if a request has the tool but no result yet, and otherwise `text`, or `seen` if
    the request has a picture."""
    source = gguf.GGUFReader(path)
    tokens = source.fields["tokenizer.ggml.tokens"].contents() + IMAGE
    types = source.fields["tokenizer.ggml.token_type"].contents() + [gguf.TokenType.CONTROL] * len(IMAGE)
    first = len(tokens)
    taken = set(tokens)
    chains = []
    for begin, written in (("<|begin_call|>", call), ("<|begin_text|>", text), ("<|begin_seen|>", seen)):
        chain = [begin, *pieces(written, taken)]
        chains.append(range(len(tokens), len(tokens) + len(chain)))
        tokens += chain
        types += [gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (len(chain) - 1)
    codes = np.sign(np.random.default_rng(1).standard_normal((len(tokens), WIDTH), dtype=np.float32))
    codes[:first, :-1] = 0
    codes[:, -1] = 1
    rows = np.zeros((len(tokens), WIDTH), dtype=np.float32)
    for token, likely in LIKELY.items():
        rows[token, -1] = likely
    rows[first:, -1] = -20
    for chain in chains:
        for here, there in zip(chain, [*chain[1:], END], strict=True):
            rows[there, :-1] += codes[here, :-1] / 4
    replaced = {
        "general.name": "scripted",
        "llama.block_count": 1,
        "llama.context_length": CONTEXT,
        "llama.embedding_length": WIDTH,
        "llama.feed_forward_length": WIDTH,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 1,
        "llama.vocab_size": len(tokens),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.chat_template": SCRIPTED.replace("%TOOL%", tool),
    }
    copy(source, out, replaced, [*idle(), ("token_embd.weight", codes, None), ("output.weight", rows, None)])


def idle():
    """The tensors of one layer that adds nothing."""
    for name, rows in (("attn_q", WIDTH), ("attn_k", WIDTH // 4), ("attn_v", WIDTH // 4), ("attn_output", WIDTH)):
        yield f"blk.0.{name}.weight", np.zeros((rows, WIDTH), dtype=np.float32), None
    for name in ("ffn_gate", "ffn_up", "ffn_down"):
        yield f"blk.0.{name}.weight", np.zeros((WIDTH, WIDTH), dtype=np.float32), None
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        yield f"{name}.weight", np.ones(WIDTH, dtype=np.float32), None


def tower(out):
    """Makes the part that sees: of each 8 by 8 pixels of a picture that it has made to fit into 64 by 64, a row of
    zeros, and a token behind each line."""
    source = gguf.GGUFReader(TOWER)
    projector = {"mm.1.weight": 36, "mm.2.weight": WIDTH}
    kept = [(tensor.name, tensor.data, None) for tensor in source.tensors if tensor.name not in projector]
    made = [(name, np.zeros((WIDTH, columns), dtype=np.float32), None) for name, columns in projector.items()]
    copy(source, out, {"clip.vision.projection_dim": WIDTH}, kept + made)
