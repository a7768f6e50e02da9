//! The C header, generated from `src/ffi` into OUT_DIR (a test compares it with `include/bn_engine.h`),
//! the shared object's soname, and the kernels for NVIDIA GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs};

/// The number at the end of the soname. It changes when existing programs would break.
fn abi_version(types: &Path) -> u32 {
    let text = read(types);
    let line = text.lines().find_map(|line| line.strip_prefix("pub const BN_ABI_VERSION: u32 = "));
    line.and_then(|rest| rest.trim_end_matches(';').parse().ok())
        .expect("src/ffi/version.rs has BN_ABI_VERSION")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Puts the value of `#define NAME 1` in parentheses, with the suffix of its Rust type. Other lines stay.
fn typed(line: &str, rust: &str) -> String {
    let Some((name, value)) = line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) else {
        return line.to_owned();
    };
    let declared = format!("pub const {name}: ");
    let suffix = rust.split_once(&declared).map(|(_, rest)| match rest.split(' ').next() {
        Some("u64") => "ull",
        Some("u32") => "u",
        _ => "",
    });
    let Some(suffix) = suffix else { return line.to_owned() };
    let bare = value.trim_start_matches('(').trim_end_matches(')').trim_end_matches("ull");
    let digits = bare.find(|c: char| !c.is_ascii_digit() && c != '-').unwrap_or(bare.len());
    format!("#define {name} ({}{suffix}{})", &bare[..digits], &bare[digits..])
}

/// Declares statuses as an enumeration, so that binding generators see one signed type. A macro of 0 would be
/// unsigned.
fn enumerated(lines: Vec<String>) -> Vec<String> {
    let status = |line: &str| line.starts_with("#define BN_OK ") || line.starts_with("#define BN_ERR_");
    let Some(last) = lines.iter().rposition(|line| status(line)) else { return lines };
    let first = lines.iter().position(|line| status(line)).expect("there is a last one");
    let first = lines[..first].iter().rposition(|line| line.starts_with("/**")).expect("each has a comment");
    let entry = |line: &String| match line.strip_prefix("#define ").and_then(|rest| rest.split_once(' ')) {
        Some((name, value)) => format!("    {name} = {},", value.trim_matches(['(', ')'])),
        None if line.is_empty() => String::new(),
        None => format!("    {line}"),
    };
    let entries = lines[first..=last].iter().map(entry).filter(|line| !line.is_empty());
    let before = lines[..first].iter().cloned().chain(["enum {".to_owned()]);
    before
        .chain(entries)
        .chain(["};".to_owned(), String::new()])
        .chain(lines[last + 1..].iter().cloned())
        .collect()
}

/// Assembles the header: the sections between the parts of `frame`, after a declaration of every struct.
fn header(frame: &str, sections: &[(&str, Vec<String>)]) -> String {
    let (mut declared, mut handles, mut body) = (Vec::new(), Vec::new(), Vec::new());
    for (title, lines) in sections {
        body.extend([format!("/* -- {title} {} */", "-".repeat(90 - title.len())), String::new()]);
        let mut at = 0;
        while at < lines.len() {
            let end = at + item(&lines[at..]);
            let (comment, code) = lines[at..end].split_at(comment(&lines[at..end]));
            let (comment, code) = (comment.iter().map(|line| bare(line)), code.join("\n"));
            at = end;
            match code.strip_prefix("typedef struct ").map(|rest| rest.split_once(" {\n")) {
                Some(Some((name, fields))) => {
                    declared.push(format!("typedef struct {name} {name};"));
                    let fields = fields.rsplit_once('}').expect("a struct has an end").0;
                    body.extend(comment.chain([
                        format!("struct {name} {{"),
                        bare(fields.trim_end()),
                        "};".into(),
                    ]));
                }
                Some(None) => handles.extend(comment.chain([code, String::new()])),
                None if code.ends_with(");") => body.extend(comment.chain([prototype(&code)])),
                None => body.extend(comment.chain([bare(&code)])),
            }
        }
        body.push(String::new());
    }
    let all = handles.into_iter().chain(declared).chain([String::new()]).chain(body);
    let all: Vec<String> =
        all.flat_map(|text| text.split('\n').map(str::to_owned).collect::<Vec<_>>()).collect();
    frame.replace("@SECTIONS@\n", &families(&short_comments(&all)))
}

/// Removes empty lines between constants of a family, like `BN_ERR_*`.
fn families(text: &str) -> String {
    let family = |line: &str| line.strip_prefix("#define BN_")?.split('_').next().map(str::to_owned);
    let (lines, mut out) = (text.lines().collect::<Vec<_>>(), String::new());
    for (at, line) in lines.iter().enumerate() {
        let before = at.checked_sub(1).and_then(|before| family(lines[before]));
        let after = lines[at + 1..].iter().find(|line| !line.starts_with("/**") && !line.starts_with(" *"));
        let one_family = before.is_some() && before == after.and_then(|line| family(line));
        if !(line.is_empty() && one_family) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// Number of lines of the first item with its comment: up to an empty line, or the end of a line of code outside of braces.
fn item(lines: &[String]) -> usize {
    let mut open = false;
    let last = lines.iter().skip(comment(lines)).position(|line| {
        open = open && !line.starts_with('}') || line.ends_with('{');
        !open && (line.is_empty() || line.ends_with(';') || line.starts_with('#'))
    });
    last.map_or(lines.len(), |last| comment(lines) + last + 1)
}

/// Number of lines of the comment that `lines` begin with.
fn comment(lines: &[String]) -> usize {
    let is_comment = |line: &&String| line.starts_with("/**") || line.starts_with(" *");
    lines.iter().take_while(is_comment).count()
}

/// Names types by their typedefs.
fn bare(text: &str) -> String {
    text.replace("struct bn_", "bn_")
}

/// Wraps a function's prototype at 100 columns.
fn prototype(code: &str) -> String {
    let words = bare(code).split_whitespace().collect::<Vec<_>>().join(" ").replace("( ", "(");
    let mut lines = vec![String::new()];
    for part in words.split_inclusive(", ") {
        let line = lines.last_mut().expect("there is a line");
        if line.len() + part.trim_end().len() > 100 {
            lines.push(format!("    {part}"));
        } else {
            line.push_str(part);
        }
    }
    lines.iter().map(|line| line.trim_end()).collect::<Vec<_>>().join("\n")
}

/// Puts comment marks on lines with text, and merges empty lines.
fn short_comments(lines: &[String]) -> String {
    let mut out = String::new();
    for line in lines {
        if line.trim() == "*/" {
            out.truncate(out.trim_end().len());
            out.push_str(" */\n");
        } else if out.trim_end().ends_with("/**") {
            out.truncate(out.trim_end().len());
            out.push_str(line.trim_start().trim_start_matches('*'));
            out.push('\n');
        } else if !(line.is_empty() && out.ends_with("\n\n")) {
            out.push_str(line);
            out.push('\n');
        }
    }
    out
}

/// A table of fields in `src/engine`, of which C has a struct.
struct Table {
    path: &'static str,
    /// What the structs stand between.
    bounds: [&'static str; 2],
    /// Names in Rust and in C.
    names: &'static [(&'static str, &'static str)],
    /// The source for cbindgen in OUT_DIR.
    made: &'static str,
}

const STATISTICS: Table = Table {
    path: "src/engine/watch/table.rs",
    bounds: ["use super::metrics::statistics;\n", "}\n"],
    names: &[
        ("LATENCY_BUCKETS", "BN_LATENCY_BUCKETS"),
        ("LENGTH_BUCKETS", "BN_LENGTH_BUCKETS"),
        ("struct Latency", "struct bn_latency"),
        ("struct Lengths", "struct bn_lengths"),
        (": Latency", ": bn_latency"),
        (": Lengths", ": bn_lengths"),
        ("statistics! {\n", ""),
        ("pub struct Stats", "#[repr(C)]\npub struct bn_stats"),
    ],
    made: "bn_stats.rs",
};

const SETTINGS: Table = Table {
    path: "src/engine/settings.rs",
    bounds: ["$with! {\n", "        }\n    };\n"],
    names: &[(
        "pub struct EngineConfig {",
        "#[repr(C)]\npub struct bn_engine_config {\npub struct_size: u32,",
    )],
    made: "bn_engine_config.rs",
};

impl Table {
    /// Its structs with only the fields' names and C types, and with comments.
    fn structs(&self, root: &Path) -> String {
        let text = read(&root.join(self.path));
        let [start, end] = self.bounds;
        let inside = text.split_once(start).and_then(|(_, rest)| rest.rsplit_once(end));
        let (structs, _) = inside.unwrap_or_else(|| panic!("{} has {start} and {end}", self.path));
        let structs: String = structs.lines().map(field).collect();
        self.names.iter().fold(structs, |text, (rust, c)| text.replace(rust, c))
    }
}

/// A line of a table, where a field of C, or two for a callback with its context, stands before `=`.
fn field(line: &str) -> String {
    let text = line.trim_start();
    if text.starts_with("///") || text.starts_with("pub ") || !text.ends_with(';') {
        return format!("{line}\n");
    }
    let declared = text.split_once(" =").map_or(text, |(declared, _)| declared).trim_end_matches(';');
    declared.split(", ").map(|field| format!("pub {field},\n")).collect()
}

/// The header's sections: a title and the sources, in their order.
const SECTIONS: &[(&str, &[&str])] = &[
    ("Texts, errors, versions", &["string.rs", "status.rs", "version.rs", "exports/info.rs"]),
    ("Handles and callbacks", &["types.rs", "log.rs", "callbacks.rs"]),
    ("Engines", &["config.rs", SETTINGS.made, "exports/engine.rs"]),
    ("Conversations", &["chat.rs", "exports/chat.rs"]),
    ("Sampling", &["sampling.rs"]),
    ("Constraints", &["constraint.rs", "exports/constraint.rs"]),
    ("Embeddings, drafts and traces of a request", &["pooling.rs", "speculation.rs", "trace.rs"]),
    ("Questions about a prompt", &["question.rs"]),
    ("Pictures", &["picture.rs", "exports/picture.rs"]),
    ("Requests", &["request.rs", "exports/request.rs", "exports/request_info.rs"]),
    ("Events", &["event.rs", "tool_call.rs", "exports/event.rs", "exports/embed.rs"]),
    ("The state and the end of an engine", &["exports/lifecycle.rs"]),
    ("Models", &["model.rs", "exports/model.rs"]),
    ("Adapters", &["exports/adapter.rs"]),
    ("Sessions and the prefix cache", &["session.rs", "exports/session.rs"]),
    ("Statistics", &[STATISTICS.made, "exports/stats.rs"]),
    ("Spans", &["span.rs"]),
];

/// Builds the kernels for NVIDIA GPUs with nvcc, or takes prebuilt ones. Does nothing without the feature
/// `cuda`.
fn kernels(root: &Path, image: &Path) {
    println!("cargo::rerun-if-env-changed=BN_CUDA_IMAGE");
    println!("cargo::rerun-if-env-changed=NVCC");
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        fs::write(image, "").expect("OUT_DIR is writable");
    } else if let Some(given) = env::var_os("BN_CUDA_IMAGE").map(PathBuf::from) {
        println!("cargo::rerun-if-changed={}", given.display());
        if !fs::copy(&given, image).is_ok_and(|bytes| bytes > 0) {
            fail(&format!("BN_CUDA_IMAGE={} cannot be read, or is empty", given.display()));
        }
    } else {
        println!("cargo::rerun-if-changed=cuda/kernels");
        println!("cargo::rerun-if-changed=cuda/build.sh");
        let mut nvcc = Command::new(root.join("cuda/build.sh"));
        if !nvcc.arg("nvcc").env("OUT", image).status().is_ok_and(|status| status.success()) {
            fail(
                "the feature `cuda` needs nvcc of CUDA 12.8 or newer, in PATH or as NVCC, or BN_CUDA_IMAGE, the file that \
                 `make cuda` makes elsewhere. This gets one from the Python index: \
                 cuda/toolkit.sh target/toolkit && export NVCC=$PWD/target/toolkit/bin/nvcc",
            );
        }
    }
}

fn fail(why: &str) -> ! {
    println!("cargo::error={why}");
    exit(1);
}

fn main() {
    println!("cargo::rerun-if-changed=src/ffi");
    println!("cargo::rerun-if-changed=tools/header/cbindgen.toml");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));

    for table in [STATISTICS, SETTINGS] {
        println!("cargo::rerun-if-changed={}", table.path);
        fs::write(out.join(table.made), table.structs(&root)).expect("OUT_DIR is writable");
    }
    let path = |source: &str| match [STATISTICS.made, SETTINGS.made].contains(&source) {
        true => out.join(source),
        false => root.join("src/ffi").join(source),
    };
    let config =
        cbindgen::Config::from_file(root.join("tools/header/cbindgen.toml")).expect("cbindgen.toml is sound");
    let generate = |sources: &[&str]| {
        let rust: String = sources.iter().map(|source| read(&path(source))).collect();
        let types = rust
            .lines()
            .filter_map(|line| line.strip_prefix("pub struct ").or(line.strip_prefix("pub type ")));
        let names = types.filter_map(|rest| rest.split([' ', ';']).next()).map(str::to_owned);
        // Include types that no function of the section takes.
        let mut config = config.clone();
        config.export.include = names.collect();
        let builder = cbindgen::Builder::new().with_config(config);
        let builder = sources.iter().fold(builder, |builder, source| builder.with_src(path(source)));
        let mut text = Vec::new();
        builder.generate().expect("src/ffi is what cbindgen understands").write(&mut text);
        let text = String::from_utf8(text).expect("a header is text");
        enumerated(text.lines().map(|line| typed(line, &rust)).collect())
    };
    let sections: Vec<_> = SECTIONS.iter().map(|(title, sources)| (*title, generate(sources))).collect();
    let frame = read(&root.join("src/ffi/frame.h"));
    fs::write(out.join("bn_engine.h"), header(&frame, &sections)).expect("OUT_DIR is writable");

    kernels(&root, &out.join("kernels.fatbin"));

    let abi = abi_version(&root.join("src/ffi/version.rs"));
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbn_engine.so.{abi}");
            // Hide llguidance's C interface, which rustc would export beside ours.
            println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
        }
        Ok("macos") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libbn_engine.{abi}.dylib")
        }
        _ => {}
    }
}
