#!/bin/sh
# conan.sh: Conan builds the package, shared and static, from this source tree, and a CMake project uses it. No remote is asked.
# CONAN names the program, version 2.
set -eu
left_out() {
    echo "skipped: $1"
    exit 0
}
"$CONAN" --version 2> /dev/null | grep -q 'version 2' || left_out "no Conan 2 (PyPI: conan)"
command -v cmake > /dev/null || left_out "no cmake"
work=$PWD/target/conan
export CONAN_HOME="$work/home"
rm -rf "$work" && mkdir -p "$work"
"$CONAN" profile detect > "$work/profile.log" 2>&1
for shared in True False; do
    log=$work/shared-$shared.log
    "$CONAN" create packaging/conan --no-remote -o "bn_engine/*:shared=$shared" \
        -c "tools.cmake.cmake_layout:test_folder=$work/test" \
        -c "tools.cmake.cmaketoolchain:user_presets=" > "$log" 2>&1 || { tail -n 40 "$log"; exit 1; }
    grep -q '^Once upon a time.' "$log" || { tail -n 40 "$log"; echo "the test package tells no story"; exit 1; }
    echo "conan create, shared=$shared: built, and used by a CMake project"
done
# Both builds have one recipe revision, since build outputs in the tree are not exported.
[ "$("$CONAN" list 'bn_engine/*:*' 2> /dev/null | grep -c 'shared:')" = 2 ] || { echo "the recipe's revision changed"; exit 1; }
