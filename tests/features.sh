#!/bin/sh
# Tests and developer programs build the dependencies with the features that the library has alone, so that all of them
# share one build. A dev-dependency that turns on another feature makes candle compile a second time.
set -eu
list() {
    ${CARGO:-cargo} tree --locked --prefix none --format '{p} {f}' "$@" | sed 's/ (\*)$//' | LC_ALL=C sort -u
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
list --package bn-engine --edges normal,build > "$work/library"
list --workspace --edges normal,build,dev > "$work/workspace"
if ! LC_ALL=C comm -23 "$work/library" "$work/workspace" | diff /dev/null - > "$work/changed"; then
    echo "dev-dependencies change the features of what the library is built from:"
    cat "$work/changed"
    exit 1
fi
