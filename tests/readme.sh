#!/bin/sh
# readme.sh PREFIX WORK PYTHON: runs the programs of README.md's section "Use it from" against an installation. Each must
# find that 17+25=42. Swift's must be the example that bindings/swift/test.sh runs. Missing tools are reported; in CI they are errors.
set -eu
prefix=$1 work=$2/readme python=$3
export LD_LIBRARY_PATH="$prefix/lib" PKG_CONFIG_PATH="$prefix/lib/pkgconfig"
mkdir -p "$work"

# The block of a language.
block() {
    awk -v fence="\`\`\`$1" '/^## /{in_section = ($0 == "## Use it from")} /^```$/{on = 0} on{print}
        in_section && $0 == fence{on = 1}' README.md
}
leave_out() {
    echo "skipped: $1, no $2"
    [ -z "${CI:-}" ] || exit 1
}
says_42() {
    "$@" > "$work/out" 2> "$work/err" || { cat "$work/out" "$work/err"; exit 1; }
    grep -q 42 "$work/out" || { echo "no 42:"; cat "$work/out"; exit 1; }
}

block swift | cmp - bindings/swift/Sources/Example/main.swift

block cpp > "$work/main.cpp"
${CXX:-c++} -std=c++17 -I"$prefix/include" "$work/main.cpp" -o "$work/main-cpp" -L"$prefix/lib" -lbn_engine
says_42 "$work/main-cpp"
echo "C++: ok"

if [ -x "$python" ]; then
    block python > "$work/main.py"
    (unset LD_LIBRARY_PATH && says_42 "$python" "$work/main.py")
    echo "Python: ok"
else leave_out Python "$python"; fi

if command -v "${GO:-go}" > /dev/null; then
    mkdir -p "$work/go" && block go > "$work/go/main.go"
    printf 'module readme\n\ngo 1.19\n\nrequire bnengine v0.0.0\n\nreplace bnengine => %s\n' "$PWD/bindings/go" > "$work/go/go.mod"
    (cd "$work/go" && GOFLAGS=-mod=mod GOPROXY=off GOTOOLCHAIN=local "${GO:-go}" build -o main .)
    says_42 "$work/go/main"
    echo "Go: ok"
else leave_out Go go; fi

if command -v curl > /dev/null; then
    # As in a shell, but on a port of its own.
    port=$("$(command -v python3)" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    { echo 'set -m'; block sh | sed "s/8080/$port/g"; } > "$work/main.sh"
    PATH="$PWD/target/c:$prefix/bin:$PATH" says_42 timeout 60 bash "$work/main.sh"
    grep -q '"text":"42".*42$' "$work/out" || { echo "bn-server or bn-chat does not say 42:"; cat "$work/out"; exit 1; }
    echo "bn-server, bn-chat: ok"
else leave_out bn-server curl; fi
