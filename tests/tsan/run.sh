#!/bin/sh
# run.sh [concurrency|engine]: Rust code and its standard library under ThreadSanitizer: the crate of what crosses threads, or
# the engine's own integration tests (minutes more, as candle is built for it too).
# Needs a nightly with rust-src (rustup), or Debian's rustc-web with rust-web-src, and then GCC's ThreadSanitizer.
set -eu
cd "$(dirname "$0")/../.."
cargo=${CARGO:-cargo}
target=$($cargo -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target/tsan}"
mkdir -p "$CARGO_TARGET_DIR"
source_of() { [ -f "$("$@" --print sysroot 2> /dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; }

if source_of rustc +nightly; then
    RUSTC=$(rustup which --toolchain nightly rustc)
    export RUSTC RUSTFLAGS="-Zsanitizer=thread"
elif source_of /usr/bin/rustc && runtime=$(gcc -print-file-name=libtsan.so) && [ -f "$runtime" ]; then
    gcc -O1 -fno-builtin -fPIC -c tests/tsan/shims.c -o "$CARGO_TARGET_DIR/shims.o"
    export RUSTC=/usr/bin/rustc
    export RUSTFLAGS="-Zsanitizer=thread -Zexternal-clangrt -Clink-arg=$CARGO_TARGET_DIR/shims.o -Clink-arg=-ltsan"
    # Its constructors must run before libc's are needed.
    runner=CARGO_TARGET_$(echo "$target" | tr 'a-z-' 'A-Z_')_RUNNER
    export "$runner=env LD_PRELOAD=$runtime"
else
    echo "ThreadSanitizer is left out: no nightly with rust-src, nor Debian's rustc-web, rust-web-src and gcc"
    exit 0
fi
# Unstable options are needed of a compiler that may be a stable one.
export RUSTC_BOOTSTRAP=1
case ${1:-concurrency} in
concurrency)
    cd tests/concurrency
    exec "$cargo" test --locked -Zbuild-std --target "$target" --lib
    ;;
engine) exec "$cargo" test --locked -Zbuild-std --target "$target" --test all engine_ ;;
esac
