//! The files that are made of the C header are up to date, and the types are the library's.
use crate::layout::STRUCTS;
use bn::sys;
use std::fs;
use std::mem::size_of;
use std::path::Path;
use std::process::Command;

#[test]
fn versions_are_the_headers() {
    // 1
    let (major, minor, patch) = (sys::BN_VERSION_MAJOR, sys::BN_VERSION_MINOR, sys::BN_VERSION_PATCH);
    assert_eq!(bn::version(), format!("{major}.{minor}.{patch}"));
    assert_eq!(bn::version(), env!("CARGO_PKG_VERSION"));
    // SAFETY: it takes nothing.
    assert_eq!(unsafe { sys::bn_abi_version() }, sys::BN_ABI_VERSION); // which every new engine and model compares
}

#[test]
#[cfg(unix)] // runs awk
fn what_is_made_of_the_header_is_committed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for file in ["src/sys", "src/stats", "src/settings", "tests/all/layout"] {
        let part = format!("part={}", file.rsplit('/').next().unwrap());
        let programs = ["-f", "tools/header/parse.awk", "-f", "tools/header/rust.awk", "include/bn_engine.h"];
        let made =
            Command::new("awk").args(["-v", &part]).args(programs).current_dir(&root).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let committed = fs::read_to_string(root.join(format!("bindings/rust/{file}.rs"))).unwrap();
        assert!(
            committed == String::from_utf8(made.stdout).unwrap(),
            "{file}.rs is stale: run `make header`"
        );
    }
}

/// `struct bn_string 16 bytes, aligned to 8` and `field bn_string.length at 8, 8 bytes, size_t`.
#[test]
#[cfg(target_pointer_width = "64")]
fn structs_are_laid_out_as_c_has_them() {
    let accepted =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/abi/abi.txt")).unwrap();
    let has = |line: String| {
        assert!(accepted.lines().any(|known| known.starts_with(&line)), "abi.txt has no {line}")
    };
    for (name, size, fields) in STRUCTS {
        has(format!("struct {name} {size} bytes,"));
        for (field, offset) in *fields {
            has(format!("field {name}.{field} at {offset},"));
        }
    }
    assert!(STRUCTS.len() > 20);
}

/// The library takes each of them at its own size and refuses a larger one as soon as it has something there.
#[test]
fn the_library_knows_the_sizes() {
    macro_rules! known {
        ($($type:ident, $init:ident;)*) => {$(
            let mut value = std::mem::MaybeUninit::<sys::$type>::zeroed();
            let size = size_of::<sys::$type>() as u32;
            // SAFETY: the library fills a struct of this size.
            let (status, value) = unsafe { (sys::$init(value.as_mut_ptr(), size), value.assume_init()) };
            assert_eq!((status, value.struct_size), (sys::BN_OK, size), stringify!($type));
        )*};
    }
    known! {
        bn_engine_config, bn_engine_config_init;
        bn_model_config, bn_model_config_init;
        bn_model_info, bn_model_info_init;
        bn_request_params, bn_request_params_init;
        bn_request_info, bn_request_info_init;
        bn_stats, bn_stats_init;
    }
}
