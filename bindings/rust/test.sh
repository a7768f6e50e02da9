#!/bin/sh
# test.sh PREFIX VERSION: formats, checks, documents and tests the package against an installed library.
set -eu
prefix=$1
version=$2
cd "$(dirname "$0")"
cargo=${CARGO:-cargo}
export BN_ENGINE_LIB_DIR="$prefix/lib" LD_LIBRARY_PATH="$prefix/lib" RUSTDOCFLAGS="-D warnings"

"$cargo" fmt --check
"$cargo" clippy --locked --quiet --all-targets -- -D warnings
"$cargo" doc --locked --quiet --no-deps
"$cargo" test --locked --quiet
grep -qx "version = \"$version\"" Cargo.toml || { echo "Cargo.toml does not have version $version"; exit 1; }
"$cargo" run --locked --quiet --example first 2> /dev/null | grep -qx 42
while IFS= read -r line; do
    grep -qxF -- "$line" README.md || { echo "README.md lacks this line of examples/first.rs: $line"; exit 1; }
done < examples/first.rs
[ "$(wc -l < examples/service.rs)" -le 60 ] || { echo "examples/service.rs has more than 60 lines"; exit 1; }

# The code that readers and writers of a stream share does not call the library, so Miri can run it.
if "$cargo" +nightly miri --version > /dev/null 2>&1; then
    MIRIFLAGS=-Zmiri-disable-isolation "$cargo" +nightly miri test --locked --quiet --lib
else
    echo "skipped: Miri, no nightly one here"
fi
