#!/bin/sh
# run.sh [concurrency|engine|c]: Rust code and its standard library under ThreadSanitizer: the crate of the code that
# threads share, or the engine's integration tests, or C programs with the static library (minutes more, as candle is
# built for these two). Needs a nightly with rust-src (rustup), or Debian's rustc-web with rust-web-src, and then GCC's
# ThreadSanitizer, as `c` does.
set -eu
cd "$(dirname "$0")/../.."
mode=${1:-concurrency}
cargo=${CARGO:-cargo}
target=$($cargo -vV | sed -n 's/^host: //p')
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target/tsan}"
mkdir -p "$CARGO_TARGET_DIR/c"
source_of() { [ -f "$("$@" --print sysroot 2> /dev/null)/lib/rustlib/src/rust/library/Cargo.lock" ]; }
left_out() { echo "skipped: ThreadSanitizer, no $1"; exit 0; }

# Between LLVM's instrumentation and GCC's runtime.
shims=$CARGO_TARGET_DIR/shims.o
runtime=$(gcc -print-file-name=libtsan.so 2> /dev/null) && [ -f "$runtime" ] &&
    gcc -O1 -fno-builtin -fPIC -c tests/tsan/shims.c -o "$shims" || runtime=

if source_of rustc +nightly; then
    RUSTC=$(rustup which --toolchain nightly rustc)
    export RUSTC RUSTFLAGS="-Zsanitizer=thread"
elif source_of /usr/bin/rustc && [ -n "$runtime" ]; then
    export RUSTC=/usr/bin/rustc
    export RUSTFLAGS="-Zsanitizer=thread -Zexternal-clangrt -Clink-arg=$shims -Clink-arg=-ltsan"
    # Its constructors must run before libc's are needed.
    runner=CARGO_TARGET_$(echo "$target" | tr 'a-z-' 'A-Z_')_RUNNER
    export "$runner=env LD_PRELOAD=$runtime"
else
    left_out "nightly with rust-src, nor Debian's rustc-web, rust-web-src and gcc"
fi
# Unstable options are needed of a compiler that may be a stable one.
export RUSTC_BOOTSTRAP=1
build_std="--locked -Zbuild-std --target $target"

# The C programs are instrumented too, so that their own races are found as well.
compile() {
    out=$CARGO_TARGET_DIR/c/$1
    shift
    gcc -std=c11 -Wall -Wextra -Werror -D_GNU_SOURCE -Iinclude -DBN_DEMO_MODEL="\"$PWD/models/bn-demo.gguf\"" -O1 -g \
        -fsanitize=thread "$@" "$shims" "$CARGO_TARGET_DIR/$target/debug/libbn_engine.a" -o "$out" \
        -lutil -lrt -lpthread -lm -ldl
}

case $mode in
concurrency)
    cd tests/concurrency
    exec "$cargo" test $build_std --lib
    ;;
engine) exec "$cargo" test $build_std --test all engine_ ;;
c)
    [ -n "$runtime" ] || left_out "ThreadSanitizer of GCC"
    "$cargo" rustc $build_std --lib --crate-type staticlib
    compile seeded tests/tsan/seeded.c
    found=0
    "$CARGO_TARGET_DIR/c/seeded" 2> /dev/null || found=$?
    if [ $found != 66 ]; then
        echo "ThreadSanitizer does not find the race in tests/tsan/seeded.c" >&2
        exit 1
    fi
    compile tests tests/c/harness.c tests/c/system_posix.c tests/c/test_delivery.c tests/c/test_events.c tests/c/test_host.c \
        tests/c/test_life.c tests/c/test_pressure.c tests/c/test_threads.c
    "$CARGO_TARGET_DIR/c/tests"
    compile soak tests/c/soak.c
    "$CARGO_TARGET_DIR/c/soak" 10
    "$CARGO_TARGET_DIR/c/soak" 10 builtin:echo
    compile destroy tests/c/destroy.c
    "$CARGO_TARGET_DIR/c/destroy" 10
    ;;
esac
