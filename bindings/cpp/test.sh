#!/bin/sh
# test.sh PREFIX VERSION WORK: the installed header as C++17 and C++20, with every compiler that is here, and under
# AddressSanitizer where it works.
set -eu
prefix=$1
version=$2
work=$3
cd "$(dirname "$0")"
golden=../../tests/golden/demo_prompts.json
flags="-O1 -g -Wall -Wextra -Wpedantic -Wshadow -Werror -I$prefix/include"
libs="-L$prefix/lib -lbn_engine -lpthread"
export LD_LIBRARY_PATH="$prefix/lib"
mkdir -p "$work"

for compiler in "${CXX:-c++}" clang++; do
    if ! command -v "$compiler" > /dev/null; then
        echo "skipped: no $compiler here"
        continue
    fi
    for standard in 17 20; do
        # shellcheck disable=SC2086
        $compiler -std=c++$standard $flags tests/test.cpp -o "$work/cpp-test" $libs
        timeout 300 "$work/cpp-test" "$version" "$golden"
        echo "$compiler, C++$standard: ok"
    done
done

# shellcheck disable=SC2086
${CXX:-c++} -std=c++17 $flags example.cpp -o "$work/cpp-example" $libs
"$work/cpp-example" | grep -q '^17+25=42$'
while IFS= read -r line; do
    grep -qxF -- "$line" README.md || { echo "README.md lacks this line of example.cpp: $line"; exit 1; }
done < example.cpp

printf 'int main() { return 0; }\n' > "$work/probe.cpp"
if ${CXX:-c++} -fsanitize=address,undefined "$work/probe.cpp" -o "$work/probe" 2> /dev/null && "$work/probe"; then
    # shellcheck disable=SC2086
    ${CXX:-c++} -std=c++17 $flags -fsanitize=address,undefined -fno-sanitize-recover=all tests/test.cpp -o "$work/cpp-asan" $libs
    timeout 300 "$work/cpp-asan" "$version" "$golden"
    echo "AddressSanitizer: ok"
fi
