//! The formats in which model families write calls and reasoning.

use super::harmony;

/// The possible contents after a marker: a bit mask of these.
pub(super) type Body = u16;
/// `{"name": "f", "arguments": {...}}`, or `parameters` instead of `arguments`.
pub(super) const OBJECT: Body = 1;
/// A list of such objects.
pub(super) const LIST: Body = 2;
/// A name, optionally `[ARGS]`, and an object of arguments.
pub(super) const NAMED: Body = 4;
/// `f(a=1, b="x")`, or a list of such calls.
pub(super) const PYTHON: Body = 8;
/// `<function=f>`, each parameter as `<parameter=a>`, its value and `</parameter>`, and `</function>`.
pub(super) const TAGS: Body = 16;
/// Like `TAGS`, without the first tag, which is the marker. Only known functions are calls.
pub(super) const TAGS_OF_KNOWN: Body = 32;
/// Names with an object of arguments, each in a [`Frame`].
pub(super) const FRAMED: Body = 64;
/// A name, then each parameter as `<arg_key>a</arg_key>`, `<arg_value>`, its value and `</arg_value>`.
pub(super) const PAIRS: Body = 128;
/// With [`PYTHON`]: calls may be lines, perhaps between ```` ```python ```` and ```` ``` ````.
pub(super) const FENCE: Body = 256;
/// `call:f{a:1,b:<|"|>x<|"|>}`, perhaps with JSON's quotes around keys and texts.
pub(super) const BRACED: Body = 512;

/// Stands before and after a text in [`BRACED`].
pub(super) const QUOTE: &str = "<|\"|>";

/// The marker between a name and its arguments in [`NAMED`]. [`CALL_ID`] comes before an id, which is ignored.
pub(super) const ARGS: &str = "[ARGS]";
pub(super) const CALL_ID: &str = "[CALL_ID]";

/// The last tag in [`TAGS`].
pub(super) const FUNCTION_END: &str = "</function>";

/// The frame around a call of [`FRAMED`]: `open`, perhaps a kind of tool and `separator`, the name, `separator` if
/// there is one, an object, perhaps between ```` ```json ```` and ```` ``` ````, and `close`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub open: &'static str,
    pub separator: &'static str,
    pub close: &'static str,
}

/// A pair of markers, and the contents between them.
#[derive(Debug, PartialEq, Eq)]
pub struct Block {
    pub open: &'static str,
    /// Empty: there is no closing marker, the calls end by themselves.
    pub close: &'static str,
    pub body: Body,
}

/// How a family's models should write calls: `begin`, the calls with `separator` between them, `end`. A call is
/// the three parts of `call`, with name and arguments between them. Arguments are a JSON object, or one after the
/// other the three parts of `parameter`, with name and value between them.
#[derive(Debug, PartialEq, Eq)]
pub struct Written {
    pub begin: &'static str,
    pub call: [&'static str; 3],
    pub parameter: Option<[&'static str; 3]>,
    /// None: only one call is possible.
    pub separator: Option<&'static str>,
    pub end: &'static str,
}

/// A family's format of calls.
#[derive(Debug, PartialEq, Eq)]
pub struct Format {
    /// Name in `tool_format`.
    pub name: &'static str,
    /// Signs of the family's templates: each contains all signs of at least one of these lists.
    signs: &'static [&'static [&'static str]],
    pub blocks: &'static [Block],
    /// Further markers in calls.
    pub inner: &'static [&'static str],
    /// For [`FRAMED`].
    pub frame: Option<Frame>,
    /// Possible contents without a marker at the start of an answer.
    pub bare: Body,
    /// An answer is a sequence of messages (`harmony.rs`), and this begins one of text. Empty: it is not.
    pub text: &'static str,
    pub written: Written,
}

/// A format without calls.
const BASE: Format = Format {
    name: "",
    signs: &[],
    blocks: &[],
    inner: &[],
    frame: None,
    bare: 0,
    text: "",
    written: PARAMETERS,
};

/// `{"name": "f", "parameters": {...}}`, alone.
const PARAMETERS: Written = Written {
    begin: "",
    call: ["{\"name\": \"", "\", \"parameters\": ", "}"],
    parameter: None,
    separator: None,
    end: "",
};

/// The format of a template is the first one whose signs it contains.
pub(super) const FORMATS: [Format; 19] = [
    Format {
        name: "mistral11",
        signs: &[&["[ARGS]"]],
        blocks: &[TOOL_CALLS],
        inner: &[ARGS, CALL_ID],
        written: Written {
            begin: "",
            call: ["[TOOL_CALLS]", ARGS, ""],
            parameter: None,
            separator: Some(""),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "mistral",
        signs: &[&["[TOOL_CALLS]"]],
        blocks: &[TOOL_CALLS],
        inner: &[ARGS, CALL_ID],
        written: Written {
            begin: "[TOOL_CALLS] [",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]",
        },
        ..BASE
    },
    Format {
        name: HARMONY,
        signs: &[&["<|channel|>", "<|message|>"]],
        blocks: &[Block { open: "<|channel|>", close: "<|message|>", body: 0 }],
        inner: &harmony::MARKERS,
        text: "<|channel|>final<|message|>",
        written: Written {
            begin: "",
            call: ["<|channel|>commentary to=functions.", " <|constrain|>json<|message|>", ""],
            parameter: None,
            separator: None,
            end: "",
        },
        ..BASE
    },
    Format {
        name: "phi4_mini",
        signs: &[&["<|/tool_call|>"], &["<|/tool|>"], &["functools["]],
        blocks: &[
            Block { open: "<|tool_call|>", close: "<|/tool_call|>", body: OBJECT | LIST },
            Block { open: "functools", close: "", body: LIST },
        ],
        written: Written {
            begin: "<|tool_call|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]<|/tool_call|>",
        },
        ..BASE
    },
    Format {
        name: "granite",
        signs: &[&["<|tool_call|>"]],
        // The second marker is Granite 3.1's.
        blocks: &[
            Block { open: "<|tool_call|>", close: "", body: OBJECT | LIST },
            Block { open: "<tool_call>", close: "", body: OBJECT | LIST },
        ],
        written: Written {
            begin: "<|tool_call|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]",
        },
        ..BASE
    },
    Format {
        name: "minicpm",
        signs: &[&["<|tool_call_start|>", "```python"]],
        blocks: &[Block {
            open: "<|tool_call_start|>",
            close: "<|tool_call_end|>",
            body: OBJECT | LIST | PYTHON | FENCE,
        }],
        written: Written {
            begin: "<|tool_call_start|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]<|tool_call_end|>",
        },
        ..BASE
    },
    Format {
        name: "olmo3",
        signs: &[&["<function_calls>"]],
        blocks: &[Block {
            open: "<function_calls>",
            close: "</function_calls>",
            body: OBJECT | LIST | PYTHON | FENCE,
        }],
        written: Written {
            begin: "<function_calls>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]</function_calls>",
        },
        ..BASE
    },
    Format {
        name: "lfm2",
        signs: &[&["<|tool_list_start|>"], &["List of tools: "]],
        blocks: &[Block {
            open: "<|tool_call_start|>",
            close: "<|tool_call_end|>",
            body: OBJECT | LIST | PYTHON,
        }],
        // For LFM2.5.
        bare: PYTHON,
        written: Written {
            begin: "<|tool_call_start|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]<|tool_call_end|>",
        },
        ..BASE
    },
    Format {
        name: "deepseek_v3",
        signs: &[&["<｜tool▁calls▁begin｜>", "```json"]],
        blocks: &DEEPSEEK,
        inner: &["<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
        frame: Some(DEEPSEEK_CALL),
        written: Written {
            begin: "<｜tool▁calls▁begin｜>",
            call: ["<｜tool▁call▁begin｜>function<｜tool▁sep｜>", "\n```json\n", "\n```<｜tool▁call▁end｜>"],
            parameter: None,
            separator: Some("\n"),
            end: "<｜tool▁calls▁end｜>",
        },
        ..BASE
    },
    Format {
        name: "deepseek_v31",
        signs: &[&["<｜tool▁calls▁begin｜>"]],
        blocks: &DEEPSEEK,
        inner: &["<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
        frame: Some(DEEPSEEK_CALL),
        written: Written {
            begin: "<｜tool▁calls▁begin｜>",
            call: ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"],
            parameter: None,
            separator: Some(""),
            end: "<｜tool▁calls▁end｜>",
        },
        ..BASE
    },
    Format {
        name: "hunyuan",
        signs: &[&["<tool_calls>", "<tool_call>"]],
        blocks: &[Block { open: "<tool_calls>", close: "</tool_calls>", body: FRAMED }],
        frame: Some(Frame { open: "<tool_call>", separator: "", close: "</tool_call>" }),
        written: Written {
            begin: "<tool_calls>\n",
            call: ["<tool_call>", "\n```json\n", "\n```\n</tool_call>\n"],
            parameter: None,
            separator: Some(""),
            end: "</tool_calls>",
        },
        ..BASE
    },
    Format {
        name: "hunyuan_a13b",
        signs: &[&["<tool_calls>"]],
        blocks: &[Block { open: "<tool_calls>", close: "</tool_calls>", body: OBJECT | LIST }],
        written: Written {
            begin: "<tool_calls>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]</tool_calls>",
        },
        ..BASE
    },
    Format {
        name: "seed_oss",
        signs: &[&["<seed:tool_call>"]],
        blocks: &[Block { open: "<seed:tool_call>", close: "</seed:tool_call>", body: TAGS }],
        written: Written {
            begin: "",
            call: ["<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"],
            parameter: Some(["<parameter=", ">", "</parameter>\n"]),
            separator: Some("\n"),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "glm",
        signs: &[&["<tool_call>", "<arg_key>"]],
        blocks: &[Block { open: "<tool_call>", close: "</tool_call>", body: PAIRS }],
        written: Written {
            begin: "",
            call: ["<tool_call>", "\n", "</tool_call>"],
            parameter: Some(["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"]),
            separator: Some("\n"),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "qwen3_coder",
        signs: &[&["<tool_call>", "<function="]],
        blocks: &[
            Block { open: "<tool_call>", close: "</tool_call>", body: TAGS },
            Block { open: "<function=", close: "</tool_call>", body: TAGS_OF_KNOWN },
        ],
        written: Written {
            begin: "",
            call: ["<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"],
            parameter: Some(["<parameter=", ">\n", "\n</parameter>\n"]),
            separator: Some("\n"),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "hermes",
        signs: &[&["<tool_call>"]],
        blocks: &[Block { open: "<tool_call>", close: "</tool_call>", body: OBJECT | LIST }],
        written: Written {
            begin: "",
            call: ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"],
            parameter: None,
            separator: Some("\n"),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "gemma4",
        signs: &[&["<|tool_call>", "<tool_call|>"]],
        blocks: &[Block { open: "<|tool_call>", close: "<tool_call|>", body: BRACED }],
        inner: &[QUOTE],
        written: Written {
            begin: "",
            call: ["<|tool_call>call:", "", "<tool_call|>"],
            parameter: None,
            separator: Some(""),
            end: "",
        },
        ..BASE
    },
    Format {
        name: "llama3",
        signs: &[&["<|python_tag|>"], &["<|start_header_id|>"]],
        blocks: &[Block { open: "<|python_tag|>", close: "", body: OBJECT | PYTHON }],
        bare: OBJECT | PYTHON,
        ..BASE
    },
    Format {
        name: "gemma",
        signs: &[&["<start_of_turn>"]],
        blocks: &[
            Block { open: "```tool_code", close: "```", body: OBJECT | PYTHON },
            Block { open: "```json", close: "```", body: OBJECT | LIST },
        ],
        bare: OBJECT | PYTHON,
        ..BASE
    },
];

/// Some models leave out the first marker.
const DEEPSEEK: [Block; 2] = [
    Block { open: "<｜tool▁calls▁begin｜>", close: "<｜tool▁calls▁end｜>", body: FRAMED },
    Block { open: "<｜tool▁call▁begin｜>", close: "<｜tool▁calls▁end｜>", body: FRAMED },
];
const DEEPSEEK_CALL: Frame =
    Frame {
        open: "<｜tool▁call▁begin｜>", separator: "<｜tool▁sep｜>", close: "<｜tool▁call▁end｜>"
    };

const TOOL_CALLS: Block = Block { open: "[TOOL_CALLS]", close: "", body: OBJECT | LIST | NAMED };

/// The markers around reasoning.
#[derive(Debug, PartialEq, Eq)]
pub struct Thoughts {
    /// Name in `reasoning_format`.
    pub name: &'static str,
    pub open: &'static str,
    pub close: &'static str,
    /// Text after the first marker that belongs to it; may be empty.
    pub label: &'static str,
    /// The text between the markers' begin and end if there is no reasoning: `label` without its line break, and
    /// the second marker.
    pub nothing: &'static str,
    /// The markers around the answer after the reasoning, which models may leave out; there may be none.
    pub answer: &'static [&'static str],
    /// A text that occurs in the family's templates. For a pair of markers it is the closing one, since some
    /// templates contain only that: their prompts open the reasoning, or they strip it from earlier answers.
    sign: &'static str,
}

impl Thoughts {
    /// The markers around the reasoning, then those around the answer.
    pub fn markers(&self) -> impl Iterator<Item = &'static str> + use<> {
        [self.open, self.close].into_iter().chain(self.answer.iter().copied())
    }

    /// The text that ends the reasoning if the model does not end it.
    pub fn ending(&self) -> String {
        let more = if self.name == HARMONY { "<|channel|>final<|message|>" } else { "" };
        format!("{}{more}", self.close)
    }

    const fn pair(name: &'static str, open: &'static str, close: &'static str) -> Self {
        Self { name, open, close, label: "", nothing: "", answer: &[], sign: close }
    }
}

pub(super) const THOUGHTS: [Thoughts; 7] = [
    Thoughts {
        sign: "<|channel|>",
        ..Thoughts::pair(HARMONY, "<|channel|>analysis<|message|>", "<|end|><|start|>assistant")
    },
    Thoughts {
        answer: &["<answer>", "</answer>"],
        sign: "<｜hy_",
        ..Thoughts::pair("hunyuan", "<think>", "</think>")
    },
    Thoughts::pair("think", "<think>", "</think>"),
    Thoughts::pair("seed", "<seed:think>", "</seed:think>"),
    Thoughts::pair("minicpm", "<|thought_start|>", "<|thought_end|>"),
    Thoughts::pair("mistral", "[THINK]", "[/THINK]"),
    Thoughts {
        label: "thought\n",
        nothing: "thought<channel|>",
        ..Thoughts::pair("gemma4", "<|channel>", "<channel|>")
    },
];

/// The name of answers that are sequences of messages, and of reasoning in them.
pub(super) const HARMONY: &str = "harmony";

/// The format for a chat template's source.
pub fn format_of(template: &str) -> Option<&'static Format> {
    let has = |signs: &[&str]| signs.iter().all(|sign| template.contains(sign));
    FORMATS.iter().find(|format| format.signs.iter().any(|signs| has(signs)))
}

pub fn format_named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The tags for a chat template's source.
pub fn thoughts_of(template: &str) -> Option<&'static Thoughts> {
    THOUGHTS.iter().find(|tags| template.contains(tags.sign))
}

pub fn thoughts_named(name: &str) -> Option<&'static Thoughts> {
    THOUGHTS.iter().find(|tags| tags.name == name)
}
