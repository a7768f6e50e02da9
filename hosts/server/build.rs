//! Sets the folders in which the program looks for the library: `BN_RPATH`, folders with a colon between.
fn main() {
    println!("cargo:rerun-if-env-changed=BN_RPATH");
    if let Some(path) = std::env::var("BN_RPATH").ok().filter(|path| !path.is_empty()) {
        println!("cargo:rustc-link-arg-bins=-Wl,-rpath,{path}");
    }
}
