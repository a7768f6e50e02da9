//! Finds the engine's library: in `BN_ENGINE_LIB_DIR`, where this repository builds it, or by pkg-config. With the feature
//! `static` it is a crate, and there is nothing to find.
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=BN_ENGINE_LIB_DIR");
    if env::var_os("CARGO_FEATURE_STATIC").is_some() || env::var_os("DOCS_RS").is_some() {
        return;
    }
    println!("cargo:rustc-link-lib=dylib=bn_engine");
    let Some((folder, library)) = named_folder().or_else(own_folder) else { return by_pkg_config() };
    println!("cargo:rerun-if-changed={}", library.display());
    println!("cargo:rustc-link-search=native={}", folder.display());
    println!("cargo:lib_dir={}", folder.display());
    run_from_here(&library);
}

/// The library file for the linker in a folder.
fn library_of(folder: &Path) -> Option<PathBuf> {
    let (prefix, suffixes): (_, &[&str]) = match env::var("CARGO_CFG_TARGET_OS").as_deref() {
        Ok("windows") => ("", &["bn_engine.lib", "bn_engine.dll.lib", "libbn_engine.dll.a"]),
        Ok("macos") => ("libbn_engine", &[".dylib"]),
        _ => ("libbn_engine", &[".so"]),
    };
    suffixes.iter().map(|suffix| folder.join(format!("{prefix}{suffix}"))).find(|path| path.exists())
}

fn named_folder() -> Option<(PathBuf, PathBuf)> {
    let folder = PathBuf::from(env::var_os("BN_ENGINE_LIB_DIR")?);
    let Some(library) = library_of(&folder) else {
        panic!("BN_ENGINE_LIB_DIR is {}, which has no library of bn_engine for linking", folder.display());
    };
    Some((folder, library))
}

/// The library that `cargo build --release` makes in the repository that this package is a part of.
fn own_folder() -> Option<(PathBuf, PathBuf)> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?);
    let folder = package.join("../../target/release").canonicalize().ok()?;
    let library = library_of(&folder)?;
    Some((folder, library))
}

fn by_pkg_config() {
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let folder = match Command::new(program).args(["--variable=libdir", "bn_engine"]).output() {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
        _ => panic!(
            "bn_engine was not found: set BN_ENGINE_LIB_DIR to the folder of its library, or PKG_CONFIG_PATH to that \
             of bn_engine.pc, or build with the feature `static`"
        ),
    };
    println!("cargo:rustc-link-search=native={folder}");
    println!("cargo:lib_dir={folder}");
}

/// Lets `cargo run` and `cargo test` find the library under the name that programs look for: cargo has OUT_DIR in their
/// search path. An installed program needs the library where its system or its rpath says.
fn run_from_here(library: &Path) {
    #[cfg(unix)]
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux") {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        for name in ["libbn_engine.so".to_owned(), format!("libbn_engine.so.{}", abi())] {
            let link = out.join(name);
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(library, &link).expect("OUT_DIR is writable");
        }
        println!("cargo:rustc-link-search=native={}", out.display());
    }
    #[cfg(not(unix))]
    let _ = library;
}

/// The number that the library's name ends with.
#[cfg(unix)]
fn abi() -> u32 {
    let sys = fs::read_to_string("src/sys.rs").expect("src/sys.rs can be read");
    let (_, rest) = sys.split_once("BN_ABI_VERSION: u32 = ").expect("src/sys.rs has the ABI's version");
    rest.split(';').next().and_then(|number| number.parse().ok()).expect("it is a number")
}
