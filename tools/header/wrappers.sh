#!/bin/sh
# wrappers.sh HEADER BINDINGS: the packages for Go, Rust, C++ and Swift name each field of the structs that they wrap.
# Python's package is generated, and C++ uses the C structs for requests and options. Fields that a package omits on
# purpose are listed here.
set -eu
here=$(dirname "$0")
header=$1
bindings=$2

# Sizes that the package sets or does not need, contexts of callbacks, and traces, which only C and C++ support.
everywhere="struct_size data_size engine lease reserved on_event on_event_context on_span on_span_context trace"

# PACKAGE FILES STRUCTS LEFT-OUT
check() {
    fields=$(awk -f "$here/parse.awk" -f "$here/fields.awk" -v structs="$3" "$header")
    [ -n "$fields" ] || { echo "wrappers.sh: no fields of $3 in $header"; exit 1; }
    for field in $fields; do
        case " $everywhere $4 " in *" $field "*) continue ;; esac
        # shellcheck disable=SC2086
        grep -qw -- "$field" $2 || { echo "bindings/$1 does not have $field of $header"; missing=1; }
    done
}

missing=0
all="bn_model_config bn_request_params bn_chat bn_sampling bn_constraint bn_embedding_params bn_event bn_model_info
bn_tool_call"
# Skip generated files, which have all fields.
check go "$(find "$bindings/go" -name '*.go' ! -name '*_test.go' ! -name header.go ! -name 'calls_*.go' ! -name '*_fields.go')" "$all" ""
check rust "$(find "$bindings/rust/src" -name '*.rs' ! -name sys.rs ! -name stats.rs ! -name settings.rs)" "$all" ""
# The number of log probabilities follows from the other two.
check swift "$(find "$bindings/swift/Sources/BnEngine" -name '*.swift' ! -name Configuration.swift)" "$all" "logprobs_count"
check cpp "$(find "$bindings/cpp" -name '*.hpp')" "bn_event bn_tool_call" ""
exit "$missing"
