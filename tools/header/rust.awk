# The parts of the Rust package that are made of the header: types, constants and functions (src/sys.rs), the statistics
# (src/stats.rs), and the offsets of fields (tests/all/layout.rs), which a test compares with tests/abi/abi.txt.
#   awk -v part=sys|stats|layout -f tools/header/parse.awk -f tools/header/rust.awk include/bn_engine.h

# The type of a declarator: `const char *data`, `char message[508]`, `const bn_request_params *const *params`.
function rust_type(s, words, n, i, is_const, type, array) {
    sub(/;$/, "", s)
    if (match(s, /\[[^]]*\]/)) {
        array = substr(s, RSTART + 1, RLENGTH - 2)
        s = substr(s, 1, RSTART - 1)
    }
    gsub(/struct /, "", s)
    sub(/[A-Za-z_0-9]+$/, "", s)
    gsub(/\*/, " * ", s)
    n = split(trim(s), words, / +/)
    for (i = 1; i <= n; i++) {
        if (words[i] == "const") is_const = 1
        else if (words[i] != "*") type = base_type(words[i])
        else {
            type = (is_const ? "*const " : "*mut ") type
            is_const = 0
        }
    }
    return array == "" ? type : "[" type "; " array "]"
}

function base_type(s) {
    if (s == "void") return "c_void"
    if (s == "char") return "c_char"
    if (s == "float") return "f32"
    if (s == "double") return "f64"
    if (s == "size_t") return "usize"
    if (s ~ /^u?int[0-9]+_t$/) {
        sub(/_t$/, "", s)
        sub(/int/, s ~ /^u/ ? "" : "i", s)
    }
    return s
}

# Parameters as Rust has them.
function parameters(s, list, n, i, out) {
    sub(/\);$/, "", s)
    if (s == "void") return ""
    n = split(s, list, ", ")
    for (i = 1; i <= n; i++) out = out (i > 1 ? ", " : "") declared(list[i]) ": " rust_type(list[i])
    return out
}

function result(s) {
    s = rust_type(trim(s) " name")
    return s == "c_void" ? "" : " -> " s
}

# `(1u << 3)` as `1 << 3`. The type follows from the suffix, or from the value without one.
function constant_type(s, i) {
    if (s == "(SIZE_MAX)") return "usize"
    if (s ~ /ull/) return "u64"
    if (s ~ /u/) return "u32"
    return s ~ /^\(/ ? "usize" : "bn_status"
}

function constant_value(s) {
    if (s == "(SIZE_MAX)") return "usize::MAX"
    gsub(/[()]/, "", s)
    sub(/u(ll)?( |$)/, " ", s)
    gsub(/ +/, " ", s)
    return trim(s)
}

function docs(s, indent) {
    if (s == "") return
    sub(/[ \t]+$/, "", s)
    gsub(/\n/, "\n" indent "/// ", s)
    gsub(/\/\/\/ \n/, "///\n", s)
    print indent "/// " s
}

# `bn_status bn_cancel(...)` or `void (*bn_log_callback)(...)`, split where the pattern matches.
function signature(s, pattern, before, behind) {
    match(s, pattern)
    before = substr(s, 1, RSTART - 1)
    behind = substr(s, RSTART + RLENGTH)
    return "(" parameters(behind) ")" result(before)
}

function type(i, s) {
    s = text[i]
    sub(/^typedef /, "", s)
    docs(doc[i], "")
    if (s ~ /^struct /) {
        print "#[repr(C)]\n#[derive(Debug)]\npub struct " name[i] " {\n    _private: [u8; 0],\n}\n"
    } else if (s ~ /\(\*/) {
        print "pub type " name[i] " =\n    Option<unsafe extern \"C\" fn" signature(s, "\\(\\*[a-z_]+\\)\\(") ">;\n"
    } else print "pub type " name[i] " = " rust_type(s) ";\n"
}

function struct(i) {
    docs(doc[i], "")
    print "#[repr(C)]\n#[derive(Clone, Copy, Debug)]\npub struct " name[i] " {"
    for (i++; kind[i] == "field"; i++) {
        docs(doc[i], "    ")
        print "    pub " name[i] ": " rust_type(text[i]) ","
    }
    print "}\n"
}

function sys(i) {
    print "use std::ffi::{c_char, c_void};\n"
    for (i = 1; i <= count; i++) {
        if (kind[i] == "constant") {
            docs(doc[i], "")
            print "pub const " name[i] ": " constant_type(text[i]) " = " constant_value(text[i]) ";\n"
        } else if (kind[i] == "type") type(i)
        else if (kind[i] == "struct") struct(i)
    }
    print "unsafe extern \"C\" {"
    for (i = 1; i <= count; i++) {
        if (kind[i] != "function") continue
        docs(doc[i], "    ")
        print "    pub fn " name[i] signature(text[i], "bn_[a-z_0-9]+\\(") ";"
    }
    print "}"
}

function statistic_type(s) {
    s = rust_type(s)
    return s == "bn_latency" ? "Latency" : s == "bn_lengths" ? "Lengths" : s
}

# A struct of the statistics with its Rust name, and its conversion from C.
function statistics(c_name, rust, i, value) {
    for (i = 1; i <= count; i++) if (kind[i] == "struct" && name[i] == c_name) docs(doc[i], "")
    print "#[derive(Clone, Debug, Default, PartialEq, Eq)]\n#[non_exhaustive]\npub struct " rust " {"
    for (i = 1; i <= count; i++) {
        if (kind[i] != "field" || owner[i] != c_name || name[i] == "struct_size") continue
        docs(doc[i], "    ")
        print "    pub " name[i] ": " statistic_type(text[i]) ","
    }
    print "}\n\nimpl From<&" c_name "> for " rust " {\n    fn from(c: &" c_name ") -> Self {\n        Self {"
    for (i = 1; i <= count; i++) {
        if (kind[i] != "field" || owner[i] != c_name || name[i] == "struct_size") continue
        value = "c." name[i]
        if (statistic_type(text[i]) ~ /^L/) value = "(&" value ").into()"
        print "            " name[i] ": " value ","
    }
    print "        }\n    }\n}"
}

function stats() {
    print "use crate::sys::{BN_LATENCY_BUCKETS, BN_LENGTH_BUCKETS, bn_latency, bn_lengths, bn_stats};\n"
    statistics("bn_stats", "Stats")
    print ""
    statistics("bn_latency", "Latency")
    print ""
    statistics("bn_lengths", "Lengths")
}

function layout(i) {
    print "use bn::sys::*;\nuse std::mem::{offset_of, size_of};\n"
    print "/// Fields and their offsets.\ntype Fields = &'static [(&'static str, usize)];\n"
    print "/// Structs with their sizes.\npub const STRUCTS: &[(&str, usize, Fields)] = &["
    for (i = 1; i <= count; i++) {
        if (kind[i] == "struct") print "    (\"" name[i] "\", size_of::<" name[i] ">(), &["
        if (kind[i] == "field") print "        (\"" name[i] "\", offset_of!(" owner[i] ", " name[i] ")),"
        if (kind[i] == "field" && kind[i + 1] != "field") print "    ]),"
    }
    print "];"
}

END {
    print "// Code generated by tools/header/rust.awk from bn_engine.h. DO NOT EDIT.\n"
    if (part == "sys") sys()
    if (part == "stats") stats()
    if (part == "layout") layout()
}
