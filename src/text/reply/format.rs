//! The formats in which model families write calls and reasoning.

/// The possible contents after a marker: a bit mask of these.
pub type Body = u8;
/// `{"name": "f", "arguments": {...}}`, or `parameters` instead of `arguments`.
pub const OBJECT: Body = 1;
/// A list of such objects.
pub const LIST: Body = 2;
/// A name, optionally `[ARGS]`, and an object of arguments.
pub const NAMED: Body = 4;
/// `f(a=1, b="x")`, or a list of such calls.
pub const PYTHON: Body = 8;
/// `<function=f>`, each parameter as `<parameter=a>`, its value and `</parameter>`, and `</function>`.
pub const TAGS: Body = 16;
/// The same without its first tag, which is the marker. Only known functions are calls.
pub const TAGS_OF_KNOWN: Body = 32;

/// The marker between a name and its arguments in [`NAMED`]. [`CALL_ID`] comes before an id, which is ignored.
pub const ARGS: &str = "[ARGS]";
pub const CALL_ID: &str = "[CALL_ID]";

/// The last tag in [`TAGS`].
pub const FUNCTION_END: &str = "</function>";

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
    /// Possible contents without a marker at the start of an answer.
    pub bare: Body,
    pub written: Written,
}

/// `{"name": "f", "parameters": {...}}`, alone.
const PARAMETERS: Written = Written {
    begin: "",
    call: ["{\"name\": \"", "\", \"parameters\": ", "}"],
    parameter: None,
    separator: None,
    end: "",
};

/// The format of a template is the first one whose signs it contains.
pub const FORMATS: [Format; 10] = [
    Format {
        name: "mistral11",
        signs: &[&["[ARGS]"]],
        blocks: &[TOOL_CALLS],
        bare: 0,
        written: Written {
            begin: "",
            call: ["[TOOL_CALLS]", ARGS, ""],
            parameter: None,
            separator: Some(""),
            end: "",
        },
    },
    Format {
        name: "mistral",
        signs: &[&["[TOOL_CALLS]"]],
        blocks: &[TOOL_CALLS],
        bare: 0,
        written: Written {
            begin: "[TOOL_CALLS] [",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]",
        },
    },
    Format {
        name: "granite",
        signs: &[&["<|tool_call|>"]],
        // The second is Granite 3.1's.
        blocks: &[
            Block { open: "<|tool_call|>", close: "", body: OBJECT | LIST },
            Block { open: "<tool_call>", close: "", body: OBJECT | LIST },
        ],
        bare: 0,
        written: Written {
            begin: "<|tool_call|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]",
        },
    },
    Format {
        name: "lfm2",
        signs: &[&["<|tool_list_start|>"], &["List of tools: ["]],
        blocks: &[Block {
            open: "<|tool_call_start|>",
            close: "<|tool_call_end|>",
            body: OBJECT | LIST | PYTHON,
        }],
        bare: 0,
        written: Written {
            begin: "<|tool_call_start|>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]<|tool_call_end|>",
        },
    },
    Format {
        name: "hunyuan_a13b",
        signs: &[&["<tool_calls>"]],
        blocks: &[Block { open: "<tool_calls>", close: "</tool_calls>", body: OBJECT | LIST }],
        bare: 0,
        written: Written {
            begin: "<tool_calls>[",
            call: ["{\"name\": \"", "\", \"arguments\": ", "}"],
            parameter: None,
            separator: Some(", "),
            end: "]</tool_calls>",
        },
    },
    Format {
        name: "seed_oss",
        signs: &[&["<seed:tool_call>"]],
        blocks: &[Block { open: "<seed:tool_call>", close: "</seed:tool_call>", body: TAGS }],
        bare: 0,
        written: Written {
            begin: "",
            call: ["<seed:tool_call>\n<function=", ">\n", "</function>\n</seed:tool_call>"],
            parameter: Some(["<parameter=", ">", "</parameter>\n"]),
            separator: Some("\n"),
            end: "",
        },
    },
    Format {
        name: "qwen3_coder",
        signs: &[&["<tool_call>", "<function="]],
        blocks: &[
            Block { open: "<tool_call>", close: "</tool_call>", body: TAGS },
            Block { open: "<function=", close: "</tool_call>", body: TAGS_OF_KNOWN },
        ],
        bare: 0,
        written: Written {
            begin: "",
            call: ["<tool_call>\n<function=", ">\n", "</function>\n</tool_call>"],
            parameter: Some(["<parameter=", ">\n", "\n</parameter>\n"]),
            separator: Some("\n"),
            end: "",
        },
    },
    Format {
        name: "hermes",
        signs: &[&["<tool_call>"]],
        blocks: &[Block { open: "<tool_call>", close: "</tool_call>", body: OBJECT }],
        bare: 0,
        written: Written {
            begin: "",
            call: ["<tool_call>\n{\"name\": \"", "\", \"arguments\": ", "}\n</tool_call>"],
            parameter: None,
            separator: Some("\n"),
            end: "",
        },
    },
    Format {
        name: "llama3",
        signs: &[&["<|python_tag|>"], &["<|start_header_id|>"]],
        blocks: &[Block { open: "<|python_tag|>", close: "", body: OBJECT | PYTHON }],
        bare: OBJECT | PYTHON,
        written: PARAMETERS,
    },
    Format {
        name: "gemma",
        signs: &[&["<start_of_turn>"]],
        blocks: &[
            Block { open: "```tool_code", close: "```", body: OBJECT | PYTHON },
            Block { open: "```json", close: "```", body: OBJECT | LIST },
        ],
        bare: OBJECT | PYTHON,
        written: PARAMETERS,
    },
];

const TOOL_CALLS: Block = Block { open: "[TOOL_CALLS]", close: "", body: OBJECT | LIST | NAMED };

/// The markers around reasoning.
#[derive(Debug, PartialEq, Eq)]
pub struct Thoughts {
    /// Name in `reasoning_format`.
    pub name: &'static str,
    pub open: &'static str,
    pub close: &'static str,
    /// Text behind the first marker that belongs to it; may be empty.
    pub label: &'static str,
}

pub const THOUGHTS: [Thoughts; 4] = [
    Thoughts { name: "think", open: "<think>", close: "</think>", label: "" },
    Thoughts { name: "seed", open: "<seed:think>", close: "</seed:think>", label: "" },
    Thoughts { name: "mistral", open: "[THINK]", close: "[/THINK]", label: "" },
    Thoughts { name: "gemma4", open: "<|channel>", close: "<channel|>", label: "thought\n" },
];

/// The format for a chat template's source.
pub fn format_of(template: &str) -> Option<&'static Format> {
    let has = |signs: &[&str]| signs.iter().all(|sign| template.contains(sign));
    // Hunyuan's dense models write a name and a fenced object in both, which is not read.
    if has(&["<tool_calls>", "<tool_call>"]) {
        return None;
    }
    FORMATS.iter().find(|format| format.signs.iter().any(|signs| has(signs)))
}

pub fn format_named(name: &str) -> Option<&'static Format> {
    FORMATS.iter().find(|format| format.name == name)
}

/// The tags for a chat template's source. Identified by the closing tag: some templates contain only that one,
/// because their prompts open the reasoning, or because they strip it from earlier answers.
pub fn thoughts_of(template: &str) -> Option<&'static Thoughts> {
    THOUGHTS.iter().find(|tags| template.contains(tags.close))
}

pub fn thoughts_named(name: &str) -> Option<&'static Thoughts> {
    THOUGHTS.iter().find(|tags| tags.name == name)
}
