//! The C header, generated from `src/ffi` into OUT_DIR (a test compares it with `include/bn_engine.h`),
//! and the shared object's soname.

use std::path::{Path, PathBuf};
use std::{env, fs};

/// What the soname ends with: the number changes when programs that were compiled before would break.
fn abi_version(types: &Path) -> u32 {
    let text = fs::read_to_string(types).expect("src/ffi/types.rs");
    let line = text.lines().find_map(|line| line.strip_prefix("pub const BN_ABI_VERSION: u32 = "));
    line.and_then(|rest| rest.trim_end_matches(';').parse().ok())
        .expect("src/ffi/types.rs has BN_ABI_VERSION")
}

/// In the order in which the header tells them.
const SOURCES: [&str; 12] = [
    "status.rs",
    "types.rs",
    "config.rs",
    "request.rs",
    "event.rs",
    "stats.rs",
    "facts.rs",
    "exports/engine.rs",
    "exports/request.rs",
    "exports/text.rs",
    "exports/chat.rs",
    "exports/info.rs",
];

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
    sources.generate().expect("src/ffi is what cbindgen understands").write_to_file(out.join("bn_engine.h"));

    let abi = abi_version(&root.join("src/ffi/types.rs"));
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbn_engine.so.{abi}"),
        Ok("macos") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libbn_engine.{abi}.dylib")
        }
        _ => {}
    }
}
