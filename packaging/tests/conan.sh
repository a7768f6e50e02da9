#!/bin/sh
# conan.sh: Conan builds the package, shared and static, from this source tree, and a CMake project uses it. No remote is asked.
# CONAN names the program, version 2.
set -eu
left_out() {
    echo "left out: $1"
    exit 0
}
"$CONAN" --version 2> /dev/null | grep -q 'version 2' || left_out "no Conan 2 (PyPI: conan)"
command -v cmake > /dev/null || left_out "no cmake"
work=$PWD/target/conan
export CONAN_HOME="$work/home"
rm -rf "$work" && mkdir -p "$work"
trap 'rm -rf packaging/conan/test_package/build packaging/conan/test_package/CMakeUserPresets.json' EXIT
run() {
    "$@" >> "$work/log" 2>&1 || { tail -n 40 "$work/log"; exit 1; }
}
run "$CONAN" profile detect
for shared in True False; do
    run "$CONAN" create packaging/conan --no-remote --build missing -o "bn_engine/*:shared=$shared"
    grep -A 3 'Running test()' "$work/log" | tail -n 1
done
"$CONAN" list 'bn_engine/*:*' 2> /dev/null | grep -e 'shared:'
