//! The C header, generated from `src/ffi` into OUT_DIR (a test compares it with `include/bn_engine.h`),
//! and the shared object's soname.

use std::env;
use std::path::PathBuf;

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

    let major = env::var("CARGO_PKG_VERSION_MAJOR").expect("cargo sets it");
    match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("linux") => println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libbn_engine.so.{major}"),
        Ok("macos") => {
            println!("cargo::rustc-cdylib-link-arg=-Wl,-install_name,@rpath/libbn_engine.{major}.dylib")
        }
        _ => {}
    }
}
