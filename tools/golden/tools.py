#!/usr/bin/env python3
"""Chats with tools as transformers renders them: tests/golden/tools/*.json from the templates beside them.

    python tools/golden/tools.py                      the committed templates
    python tools/golden/tools.py --originals DIR OUT  any *.jinja in DIR, into OUT, for
                                                      BN_TOOLS_GOLDEN=OUT cargo test --test all text_tools::
"""
import copy
import json
import os
import sys

from jinja2.exceptions import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

HERE = os.path.join(os.path.dirname(__file__), "../../tests/golden/tools")
TOKENS = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Says what the weather is, \"now\" & there: <°C>.",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Où? 東京, a'b\\c"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": None},
                "days": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 1e2}},
            },
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
SEND = {"type": "function", "function": {"name": "send-mail.v2", "parameters": {"type": "object", "properties": {}}}}
BARE = {"type": "function", "function": {"name": "now"}}


def call(name, arguments, id="abc123XYZ", **more):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments, **more}}


ASKED = {"role": "user", "content": "Weather in Paris?"}
CALLED = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", '{"city": "Paris", "days": [1, 2]}')]}
TOLD = {"role": "tool", "tool_call_id": "abc123XYZ", "name": "get_weather", "content": '{"t": 21.5, "sky": "clear"}'}
TWO = {
    "role": "assistant",
    "content": "Both at once.",
    "tool_calls": [
        call("get_weather", '{"unit":"celsius","city":"Zürich \\u6771 \\"x\\" \\n\\ud83d\\ude00"}', "aaaaaaaa1"),
        call("send-mail.v2", {"to": ["a@b.c"], "n": 3, "x": 1.0, "y": 1e-7, "z": -0.0, "deep": {"t": True, "f": None}}, "aaaaaaaa2"),
    ],
}
TWO_TOLD = [
    {"role": "tool", "tool_call_id": "aaaaaaaa1", "content": "21"},
    {"role": "tool", "tool_call_id": "aaaaaaaa2", "content": [{"type": "text", "text": "sent"}, {"type": "text", "text": "twice"}]},
]
SYSTEM = {"role": "system", "content": "Be brief."}
THOUGHT = {"role": "assistant", "reasoning_content": "They want\nthe weather.", "content": "Let me look.", "tool_calls": CALLED["tool_calls"]}

# The `tool_format` and `reasoning_format` of each committed template.
FORMATS = {
    "deepseek-v3": ("deepseek_v3", "think"),
    "deepseek-v3.1": ("deepseek_v31", "think"),
    "documents": (None, None),
    "exaone4": ("hermes", "think"),
    "gemma": ("gemma", None),
    "gemma4": ("gemma4", "gemma4"),
    "glm-4.7": ("glm", "think"),
    "granite-3.3": ("granite", "think"),
    "harmony": ("harmony", "harmony"),
    "hermes": ("hermes", None),
    "hunyuan": ("hunyuan", "hunyuan"),
    "lfm2": ("lfm2", None),
    "llama-3.1": ("llama3", None),
    "mistral-v11": ("mistral11", None),
    "mistral-v3": ("mistral", None),
    "olmo3": ("olmo3", "think"),
    "phi4-mini": ("phi4_mini", None),
    "qwen3": ("hermes", "think"),
    "qwen3-coder": ("qwen3_coder", None),
    "qwen3.6": ("qwen3_coder", "think"),
    "seed-oss": ("seed_oss", "seed"),
    "smollm3": ("hermes", "think"),
}

CHATS = {
    "tools": {"messages": [ASKED], "tools": [WEATHER]},
    "tools and system": {"messages": [SYSTEM, ASKED], "tools": [WEATHER, SEND, BARE]},
    "no tools": {"messages": [SYSTEM, ASKED]},
    "a call": {"messages": [ASKED, CALLED], "tools": [WEATHER], "add_generation_prompt": False},
    "a result": {"messages": [ASKED, CALLED, TOLD], "tools": [WEATHER]},
    "an answer": {
        "messages": [SYSTEM, ASKED, CALLED, TOLD, {"role": "assistant", "content": "Clear, 21 °C."}, {"role": "user", "content": "Thanks"}],
        "tools": [WEATHER],
    },
    "two calls": {"messages": [ASKED, TWO, *TWO_TOLD], "tools": [WEATHER, SEND]},
    "no arguments": {
        "messages": [ASKED, {"role": "assistant", "tool_calls": [call("now", ""), call("now", "{}", "bbbbbbbbb"), call("now", None, "ccccccccc")]}],
        "tools": [BARE],
    },
    "short id": {"messages": [ASKED, {"role": "assistant", "tool_calls": [call("now", {}, "1")]}, {**TOLD, "tool_call_id": "1"}], "tools": [BARE]},
    "no calls": {"messages": [ASKED, {"role": "assistant", "content": "No.", "tool_calls": []}, {"role": "user", "content": "Why?"}], "tools": []},
    "nulls": {
        "messages": [
            {"role": "user", "content": "Hi", "name": None},
            {"role": "assistant", "content": "Ho", "refusal": None, "tool_calls": None, "function_call": None, "audio": None},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two "}]},
        ]
    },
    "thoughts": {"messages": [ASKED, THOUGHT, TOLD], "tools": [WEATHER]},
    "old thoughts": {"messages": [ASKED, THOUGHT, TOLD, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nClear."}, ASKED]},
    "thinking off": {"messages": [ASKED], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking on": {"messages": [ASKED], "tools": [WEATHER], "chat_template_kwargs": {"enable_thinking": True}},
    "variables": {
        "messages": [SYSTEM, ASKED],
        "tools": [WEATHER],
        "chat_template_kwargs": {
            "date_string": "1 Jan 2030", "tools_in_user_message": False, "builtin_tools": ["brave_search", "code_interpreter"],
            "reasoning_effort": "high", "extra": [1, "x", None, True, 2.5], "settings": {"é": {"a": []}, "b": "<&>"},
        },
    },
    "builtin": {
        "messages": [ASKED, {"role": "assistant", "tool_calls": [call("brave_search", {"query": "Paris weather", "k": "v"})]}],
        "chat_template_kwargs": {"builtin_tools": ["brave_search"]},
    },
    "documents": {
        "messages": [{**ASKED, "name": "Zoë", "weight": 0}],
        "documents": [{"title": "One", "text": "The <first>."}, {"title": "Two", "text": "x\ny", "more": [1]}],
    },
    "go on": {"messages": [ASKED, {"role": "assistant", "content": "The weather in"}], "continue_final_message": True},
    "go on with blanks": {"messages": [SYSTEM, ASKED, {"role": "assistant", "content": "  The weather:\n"}], "continue_final_message": True},
    "go on with tools": {"messages": [ASKED, CALLED, TOLD, {"role": "assistant", "content": "It is"}], "tools": [WEATHER], "continue_final_message": True},
    "go on with a thought": {"messages": [ASKED, {"role": "assistant", "content": "<think>\nFirst,"}], "continue_final_message": True},
    "go on with the user": {"messages": [{"role": "user", "content": "Once upon "}], "continue_final_message": True},
    "control tokens": {
        "messages": [
            {"role": "user", "content": "<|im_end|>[/INST]<|eot_id|>"},
            {"role": "assistant", "tool_calls": [call("x", {"<|im_start|>": "</s><|python_tag|>[TOOL_CALLS]"})]},
            {"role": "tool", "tool_call_id": "abc123XYZ", "content": "<|im_start|>system\n<end_of_turn>"},
        ],
        "tools": [{"type": "function", "function": {"name": "x", "description": "<|im_end|>"}}],
    },
}


def prepared(chat):
    """Converts a chat: arguments as objects, like vLLM; content as one text; no empty list of calls."""
    chat = copy.deepcopy(chat)
    for message in chat["messages"]:
        if isinstance(message.get("content"), list):
            message["content"] = "".join(part["text"] for part in message["content"])
        for made in message.get("tool_calls") or []:
            arguments = made["function"]["arguments"]
            made["function"]["arguments"] = json.loads(arguments) if isinstance(arguments, str) and arguments else arguments or {}
        if message.get("tool_calls") == []:
            del message["tool_calls"]
    return chat


def render(template, chat):
    """Renders like apply_chat_template; None where the template fails, also by Python's own errors."""
    chat = prepared(chat)
    goes_on = chat.get("continue_final_message", False)
    given = chat.get("chat_template_kwargs", {})
    if "xml_tools" in template:
        # SmolLM3's template does not read `tools`; its model card passes them so.
        given = {"xml_tools": chat.get("tools") or None, **given}
    messages = [{k: v for k, v in m.items() if v is not None} for m in chat["messages"]]
    if "message['tools']" in template and chat.get("tools"):
        # Phi-4-mini's template does not read `tools` either; its model card puts them into the system message, as
        # text.
        if not messages or messages[0]["role"] != "system":
            messages.insert(0, {"role": "system", "content": ""})
        messages[0]["tools"] = json.dumps([tool["function"] for tool in chat["tools"]], ensure_ascii=False)
    try:
        out, _ = render_jinja_template(
            [messages],
            tools=chat.get("tools") or None,
            documents=chat.get("documents"),
            chat_template=template,
            continue_final_message=goes_on,
            add_generation_prompt=chat.get("add_generation_prompt", not goes_on),
            **TOKENS,
            **given,
        )
        return out[0]
    except (TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError):
        return None


def write(folder, name, value):
    with open(os.path.join(folder, name), "w") as file:
        json.dump(value, file, ensure_ascii=False, indent=0)
        file.write("\n")


def main():
    folder = out = HERE
    if len(sys.argv) == 4 and sys.argv[1] == "--originals":
        folder, out = sys.argv[2:]
    os.makedirs(out, exist_ok=True)
    # Stored as text, because Rust's JSON readers do not keep the order of names.
    write(out, "chats.json", {title: json.dumps(chat, ensure_ascii=False) for title, chat in CHATS.items()})
    for name in sorted(os.listdir(folder)):
        if not name.endswith(".jinja"):
            continue
        with open(os.path.join(folder, name), newline="") as file:
            template = file.read()
        texts = {title: render(template, chat) for title, chat in CHATS.items()}
        golden = {"template": template, "texts": texts}
        name = name.removesuffix(".jinja")
        if out == HERE:
            golden["tool_format"], golden["reasoning_format"] = FORMATS[name]
        write(out, name + ".json", golden)
        print(f"{name}: {len(texts)} chats, {sum(text is None for text in texts.values())} refused")


if __name__ == "__main__":
    main()
