#!/bin/sh
# use_install.sh PREFIX WORK: builds and runs programs against an installed library, as strangers do.
set -eu
prefix=$1
work=$2
lib=$prefix/lib

ran() {
    echo "$1: ok"
}

cflags="-I$prefix/include"
libs="-L$lib -lbn_engine"
private="-lgcc_s -lutil -lrt -lpthread -lm -ldl -lc"
how="no pkg-config here, flags by hand"
if command -v "$PKG_CONFIG" > /dev/null; then
    export PKG_CONFIG_PATH="$lib/pkgconfig"
    cflags=$($PKG_CONFIG --cflags bn_engine)
    libs=$($PKG_CONFIG --libs bn_engine)
    private=$($PKG_CONFIG --static --libs bn_engine | tr ' ' '\n' | grep -v -e '^-L' -e '^-lbn_engine$' | tr '\n' ' ')
    how="pkg-config"
fi

$CC -std=c11 examples-c/hello.c -o "$work/hello-shared" $cflags $libs
LD_LIBRARY_PATH=$lib "$work/hello-shared" > /dev/null
ran "C, shared ($how)"
$CC -std=c11 examples-c/hello.c -o "$work/hello-static" $cflags "$lib/libbn_engine.a" $private
"$work/hello-static" > /dev/null
ran "C, static"
$CXX -std=c++17 tests/c/include.cpp -o "$work/hello-cpp" $cflags $libs
LD_LIBRARY_PATH=$lib "$work/hello-cpp"
ran "C++"

if command -v "$CMAKE" > /dev/null; then
    "$CMAKE" -S tests/cmake_smoke -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix" > "$work/cmake.log" 2>&1 &&
        "$CMAKE" --build "$work/cmake" >> "$work/cmake.log" 2>&1 || { cat "$work/cmake.log"; exit 1; }
    "$work/cmake/hello" > /dev/null
    "$work/cmake/hello_static" > /dev/null
    ran "CMake, shared and static"
else
    echo "CMake: not installed, skipped"
fi

if command -v "$GO" > /dev/null && [ "$how" = pkg-config ]; then
    binary=$(cd "$work" && pwd)/go-smoke
    (cd tests/go_smoke && CGO_ENABLED=1 GOFLAGS=-mod=mod GOPROXY=off "$GO" build -o "$binary" .)
    LD_LIBRARY_PATH=$lib "$binary" > /dev/null
    ran "Go"
else
    echo "Go: go or pkg-config not installed, skipped"
fi
