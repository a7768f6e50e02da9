#!/bin/sh
# use_install.sh PREFIX WORK: builds and runs programs against an installed library, as other projects do.
set -eu
prefix=$1
work=$2
lib=$prefix/lib

ran() {
    echo "$1: ok"
}
needs() {
    readelf -d "$1" | grep -q 'NEEDED.*libbn_engine'
}
fail() {
    echo "$1"
    exit 1
}

cflags="-I$prefix/include"
libs="-L$lib -lbn_engine"
static="$lib/libbn_engine.a -lutil -lrt -lpthread -lm -ldl"
all_static=$static
how="no pkg-config here, flags by hand"
if command -v "$PKG_CONFIG" > /dev/null; then
    export PKG_CONFIG_PATH="$lib/pkgconfig"
    cflags=$($PKG_CONFIG --cflags bn_engine)
    libs=$($PKG_CONFIG --libs bn_engine)
    static=$($PKG_CONFIG --libs bn_engine-static)
    all_static=$($PKG_CONFIG --static --libs bn_engine)
    how="pkg-config"
fi

$CC -std=c11 examples-c/hello.c -o "$work/hello-shared" $cflags $libs
LD_LIBRARY_PATH=$lib "$work/hello-shared" > /dev/null
needs "$work/hello-shared" || fail "hello-shared does not need the shared library"
ran "C, shared ($how)"
$CC -std=c11 examples-c/hello.c -o "$work/hello-static" $cflags $static
"$work/hello-static" > /dev/null
! needs "$work/hello-static" || fail "hello-static needs the shared library"
ran "C, the library static ($how)"
printf 'int main(void) { return 0; }\n' > "$work/probe.c"
if $CC -static "$work/probe.c" -o "$work/probe" 2> /dev/null; then
    $CC -static -std=c11 examples-c/hello.c -o "$work/hello-all-static" $cflags $all_static
    "$work/hello-all-static" > /dev/null
    ran "C, everything static"
else
    echo "skipped: C, everything static: no static libc here"
fi
$CXX -std=c++17 tests/c/include.cpp -o "$work/hello-cpp" $cflags $libs
LD_LIBRARY_PATH=$lib "$work/hello-cpp"
ran "C++"

if command -v "$CMAKE" > /dev/null; then
    "$CMAKE" -S tests/cmake_smoke -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" > "$work/cmake.log" 2>&1 &&
        "$CMAKE" --build "$work/cmake" >> "$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
    "$work/cmake/hello" > /dev/null
    "$work/cmake/hello_static" > /dev/null
    needs "$work/cmake/hello" || fail "CMake's shared target is not shared"
    ! needs "$work/cmake/hello_static" || fail "CMake's static target is not static"
    ran "CMake, shared and static"
else
    echo "skipped: CMake is not installed"
fi
