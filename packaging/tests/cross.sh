#!/bin/sh
# cross.sh musl|aarch64: builds and installs the library for another system and uses it: C programs, shared and static; bn-chat,
# bn-server; the demo model's golden prompts. Programs for aarch64 run under qemu-user.
set -eu
left_out() {
    echo "skipped: $1"
    exit 0
}
fail() {
    echo "$1"
    exit 1
}
machine=$(uname -m)
name=$1
case $name in
musl)
    target=$machine-unknown-linux-musl
    cc=musl-gcc
    tools=CC=musl-gcc
    ;;
aarch64)
    [ "$machine" != aarch64 ] || left_out "this machine is one"
    target=aarch64-unknown-linux-gnu
    cc=aarch64-linux-gnu-gcc
    tools=CROSS=aarch64-linux-gnu-
    ;;
esac
command -v $cc > /dev/null || left_out "no $cc (Debian: musl-tools, gcc-aarch64-linux-gnu)"
ls "$("${RUSTC:-rustc}" --print target-libdir --target "$target")"/libstd-*.rlib > /dev/null 2>&1 ||
    left_out "no standard library for $target (rustup target add $target)"
c=target/$target/c
stage=$PWD/$c/stage
run="env LD_LIBRARY_PATH=$stage/lib"
if [ "$name" = aarch64 ]; then
    emulator=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) || left_out "no qemu-aarch64 (Debian: qemu-user)"
    # Use the compiler's loader and libc: those in this machine's loader cache may not match.
    libc=$(dirname "$(realpath "$($cc -print-file-name=libc.so.6)")")
    run="$emulator -cpu max -L $(dirname "$libc") -E LD_LIBRARY_PATH=$stage/lib:$libc"
fi

build() {
    "$MAKE" --no-print-directory "$@" TARGET="$target" "$tools" > $c/build.log 2>&1 || { cat $c/build.log; exit 1; }
}
rm -rf "$stage" && mkdir -p "$stage"
build hosts
build install PREFIX="$stage" DESTDIR=
shared=$(realpath "$stage/lib/libbn_engine.so")
tests/abi/check_symbols.sh shared "$shared" $c/symbols.txt @@BN_1
tests/abi/check_symbols.sh static "$stage/lib/libbn_engine.a" $c/symbols.txt
readelf -h "$shared" | sed -n 's/ *Machine: */for /p'
readelf -d "$shared" | sed -n 's/.*NEEDED.*\[\(.*\)\]/needs \1/p'

# pkg-config's default paths are this machine's, so set those of the installation.
export PKG_CONFIG_PATH="$stage/lib/pkgconfig"
hello() {
    what=$1
    shift
    $cc -std=c11 examples-c/hello.c -o $c/hello "$@"
    $run $c/hello > $c/hello.out || fail "hello, $what: does not run"
    grep -q 'Once upon a time.' $c/hello.out || fail "hello, $what: no story"
    echo "hello, $what: ok"
}
flags() {
    "$PKG_CONFIG" --cflags --libs "$@"
}
hello "the library shared" $(flags bn_engine)
hello "the library static" $(flags bn_engine-static)
hello "everything static" -static $(flags --static bn_engine)

printf '#!/bin/sh\nexec %s %s "$@"\n' "$run" "$stage/bin/bn-chat" > $c/run-chat
chmod +x $c/run-chat
hosts/chat/test.sh $c/run-chat models/bn-demo.gguf
$run "$stage/bin/bn-convert" --version
$run "$stage/bin/bn-server" --version

build $c/tests
if [ "$name" = aarch64 ]; then
    # Not all tests run (docs/packaging.md): the emulator has threads, and fails when a process with threads forks.
    $run $c/tests the_committed_questions
    $run $c/tests company_changes_no_bit
else
    $run $c/tests > $c/tests.out || { cat $c/tests.out; exit 1; }
    tail -n 2 $c/tests.out | head -n 1
fi
