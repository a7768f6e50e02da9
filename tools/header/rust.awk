# The parts of the Rust package that are made of the header: types, constants and functions (src/sys.rs), the statistics
# (src/stats.rs), an engine's options (src/settings.rs), and the offsets of fields (tests/all/layout.rs), which a test
# compares with tests/abi/abi.txt.
#   awk -v part=sys|stats|settings|layout -f tools/header/parse.awk -f tools/header/rust.awk include/bn_engine.h

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

# kv_type as KvType
function camel(s, words, n, i, out) {
    n = split(s, words, "_")
    for (i = 1; i <= n; i++) out = out toupper(substr(words[i], 1, 1)) substr(words[i], 2)
    return out
}

# The type of an engine's option; empty for what the package sets itself.
function option_type(i) {
    if (kind[i] != "field" || owner[i] != "bn_engine_config") return ""
    if (name[i] ~ /^struct_size$|^on_event|_context$/) return ""
    if (text[i] ~ /^bn_model /) return "Option<Model>"
    if (text[i] ~ /^bn_string /) return name[i] ~ /_path$/ ? "Option<PathBuf>" : "Option<String>"
    if (text[i] ~ /_callback /) return name[i] == "log" ? "Option<Log>" : "Option<OnSpan>"
    return doc[i] ~ /`BN_[A-Z_]+_\*`/ ? camel(name[i]) : rust_type(text[i])
}

# A C value of an option, or empty for one that is set with its context.
function option_value(i, of) {
    of = option_type(i)
    if (of == "Option<Model>") return "model(&self." name[i] ")"
    if (of == "Option<PathBuf>") return "text::path(self." name[i] ".as_deref())"
    if (of == "Option<String>") return "text::optional(self." name[i] ".as_deref())"
    if (of ~ /^Option/) return ""
    return "self." name[i] (of ~ /^[A-Z]/ ? " as u32" : "")
}

function option_default(i, of) {
    of = option_type(i)
    if (of == "LogLevel") return "LogLevel::of(c." name[i] ")"
    return of ~ /^Option/ ? "None" : of ~ /^[A-Z]/ ? of "::default()" : "c." name[i]
}

function option_docs(i, s) {
    s = doc[i]
    gsub(/BN_[A-Z_]+_\*/, camel(name[i]), s)
    gsub(/NULL/, "None", s)
    gsub(/`bn_stats\./, "`Stats::", s)
    gsub(/`bn_model_info\./, "`ModelInfo::", s)
    gsub(/`bn_model_config\./, "`ModelOptions::", s)
    gsub(/`bn_request_params\./, "`Request::", s)
    gsub(/`bn_kv_events`/, "`Engine::kv_events`", s)
    gsub(/`trace_id`/, "`trace`", s)
    docs(s, "    ")
}

function settings(i) {
    print "use crate::engine_options::{Instructions, KvType};\nuse crate::log::{Log, LogLevel};"
    print "use crate::model::Model;\nuse crate::request::Speculation;\nuse crate::span::OnSpan;"
    print "use crate::sys::bn_engine_config;\nuse crate::text;\nuse std::path::PathBuf;\nuse std::ptr;\n"
    print "/// The options of an engine. Fields have the names and units of the C header, which errors use too."
    print "/// [`EngineOptions::default`] has the library's defaults. `max_unread_bytes` limits what waits for this package's"
    print "/// thread, which takes it at once; [`Request::max_unread_bytes`](crate::Request::max_unread_bytes) limits what is"
    print "/// not read.\n#[derive(Clone)]\npub struct EngineOptions {"
    for (i = 1; i <= count; i++) if (option_type(i) != "") {
        option_docs(i)
        print "    pub " name[i] ": " option_type(i) ","
    }
    print "}\n\nimpl EngineOptions {\n    /// The defaults.\n    pub(crate) fn of(c: &bn_engine_config) -> Self {\n        Self {"
    for (i = 1; i <= count; i++) if (option_type(i) != "") print "            " name[i] ": " option_default(i) ","
    print "        }\n    }\n\n    /// Sets all but callbacks, to what is valid while the options are."
    print "    pub(crate) fn set(&self, c: &mut bn_engine_config) {"
    print "        let model = |model: &Option<Model>| model.as_ref().map_or(ptr::null_mut(), Model::raw);"
    for (i = 1; i <= count; i++) if (option_type(i) != "" && option_value(i) != "")
        print "        c." name[i] " = " option_value(i) ";"
    print "    }\n}"
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
    if (part == "settings") settings()
    if (part == "layout") layout()
}
