#!/bin/sh
# Tests the kernels for aarch64 under qemu-user. Names a missing tool if there is one; in CI (CI=true) that is a failure.
# Needs a cross compiler for linking, the emulator, and a rustc with a standard library for aarch64: rustup's
# (`rustup target add`), or Debian's rustc-web with libstd-rust-web-dev:arm64 in /usr.
set -eu
cd "$(dirname "$0")"
target=aarch64-unknown-linux-gnu

left_out() {
    echo "skipped: the tests for aarch64: $1"
    [ -z "${CI:-}" ] || { echo "CI must run them"; exit 1; }
    exit 0
}

# Checks for a standard library for the target, and for the edition and functions that the sources use.
fits() {
    folder=$("$1" --print target-libdir --target $target 2> /dev/null) || return 1
    ls "$folder"/libstd-*.rlib > /dev/null 2>&1 || return 1
    minor=$("$1" --version | sed 's/^rustc 1\.\([0-9]*\)\..*/\1/')
    [ "$minor" -ge 90 ]
}

[ "$(uname -m)" != aarch64 ] || { echo "this machine is an aarch64, cargo test has run them"; exit 0; }
linker=${ARM_CC:-aarch64-linux-gnu-gcc}
command -v "$linker" > /dev/null || left_out "no $linker (Debian: gcc-aarch64-linux-gnu)"
emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
    left_out "no qemu-aarch64 (Debian: qemu-user)"
for rustc in "${RUSTC:-rustc}" /usr/bin/rustc none; do
    [ "$rustc" != none ] || left_out "no rustc with a standard library for it (rustup target add $target)"
    if fits "$rustc"; then break; fi
done

export RUSTC="$rustc" CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-../../target/arm}"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$emulator -cpu max"
# Link statically, because the loader and libc that the emulator finds here need not match.
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C target-feature=+crt-static"
# Skip doc tests, since rustdoc may be of another toolchain.
exec "${CARGO:-cargo}" test --locked --lib --target $target "$@"
