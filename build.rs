//! The C header, generated from `src/ffi` into OUT_DIR (a test compares it with `include/bn_engine.h`),
//! the shared object's soname, and the kernels for NVIDIA GPUs.

use std::path::{Path, PathBuf};
use std::process::{Command, exit};
use std::{env, fs};

/// What the soname ends with: the number changes when programs that were compiled before would break.
fn abi_version(types: &Path) -> u32 {
    let text = read(types);
    let line = text.lines().find_map(|line| line.strip_prefix("pub const BN_ABI_VERSION: u32 = "));
    line.and_then(|rest| rest.trim_end_matches(';').parse().ok())
        .expect("src/ffi/types.rs has BN_ABI_VERSION")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `#define NAME 1` with its value in parentheses, and with the suffix of its Rust type; other lines as they are.
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

/// Comments of one line in one line; no two empty lines in a row.
fn short_comments(lines: &[String]) -> String {
    let (mut out, mut at) = (String::new(), 0);
    while at < lines.len() {
        let line = &lines[at];
        let indent = line.trim_end_matches("/**");
        let text = lines.get(at + 1).and_then(|next| next.strip_prefix(&format!("{indent} * ")));
        let ends = lines.get(at + 2).is_some_and(|next| *next == format!("{indent} */"));
        match text.filter(|text| line.ends_with("/**") && ends && indent.len() + text.len() < 92) {
            Some(text) => {
                out.push_str(&format!("{indent}/** {text} */\n"));
                at += 3;
            }
            None => {
                if !(line.is_empty() && out.ends_with("\n\n")) {
                    out.push_str(line);
                    out.push('\n');
                }
                at += 1;
            }
        }
    }
    out
}

/// In the order in which the header tells them.
const SOURCES: [&str; 20] = [
    "status.rs",
    "string.rs",
    "types.rs",
    "model.rs",
    "config.rs",
    "sampling.rs",
    "constraint.rs",
    "request.rs",
    "tool_call.rs",
    "event.rs",
    "stats.rs",
    "session.rs",
    "span.rs",
    "exports/model.rs",
    "exports/chat.rs",
    "exports/engine.rs",
    "exports/adapter.rs",
    "exports/request.rs",
    "exports/session.rs",
    "exports/info.rs",
];

/// The kernels for NVIDIA GPUs, compiled by nvcc or by somebody else before; nothing without the feature `cuda`.
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
    println!("cargo::rerun-if-changed=cbindgen.toml");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets it"));

    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml is sound");
    let sources = SOURCES.iter().fold(cbindgen::Builder::new().with_config(config), |builder, source| {
        builder.with_src(root.join("src/ffi").join(source))
    });
    let mut header = Vec::new();
    sources.generate().expect("src/ffi is what cbindgen understands").write(&mut header);
    let header = String::from_utf8(header).expect("a header is text");
    let rust: String = SOURCES.iter().map(|source| read(&root.join("src/ffi").join(source))).collect();
    let lines: Vec<String> = header.lines().map(|line| typed(line, &rust)).collect();
    fs::write(out.join("bn_engine.h"), short_comments(&lines)).expect("OUT_DIR is writable");

    kernels(&root, &out.join("kernels.fatbin"));

    let abi = abi_version(&root.join("src/ffi/types.rs"));
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbn_engine.so.{abi}");
            // llguidance's C interface, which rustc would export beside ours.
            println!("cargo::rustc-cdylib-link-arg=-Wl,--exclude-libs,ALL");
        }
        Ok("macos") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libbn_engine.{abi}.dylib")
        }
        _ => {}
    }
}
