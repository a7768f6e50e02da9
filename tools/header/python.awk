# The Python package's bn_engine/_header.py: constants, exceptions, tuples for the structs that the library writes,
# options for those that the caller writes, and the declarations for cffi.
#   awk -f tools/header/parse.awk -f tools/header/python.awk include/bn_engine.h

# ERR_QUEUE_FULL as ErrQueueFull, bn_kv_event as KvEvent
function camel(s, words, n, i, out) {
    sub(/^bn_/, "", s)
    n = split(tolower(s), words, "_")
    for (i = 1; i <= n; i++) out = out toupper(substr(words[i], 1, 1)) substr(words[i], 2)
    return out
}

# A comment with Python's names, with an indent before each line but the first.
function prose(s, indent) {
    gsub(/`BN_/, "`", s)
    gsub(/[ \n]+$/, "", s)
    gsub(/\n/, "\n" indent, s)
    return s
}

function comment_above(s, indent) {
    print indent "#: " prose(s, indent "#: ")
}

function docstring(s, indent) {
    sub(/\n\n.*/, "", s)
    print indent "\"\"\"" prose(s, indent) "\"\"\"\n"
}

# `(1u << 3)` as `1 << 3`; empty if it is not a number.
function number(s) {
    gsub(/[()]/, "", s)
    sub(/u?l*$/, "", s)
    sub(/u <</, " <<", s)
    return s ~ /^-?[0-9]+( << [0-9]+)?$/ ? s : ""
}

function public(s) {
    names[++named] = s
    return s
}

function has_field(struct, field, i) {
    for (i = 1; i <= count; i++) if (kind[i] == "field" && owner[i] == struct && name[i] == field) return 1
    return 0
}

# Fields that the package sets itself: sizes, counts of elements, callbacks and contexts, handles, the source of a
# model, the kind of a constraint. Also spans, which it does not have.
function hidden(i, stem) {
    if (name[i] ~ /^(struct_size|data|data_size|user_data|engine|lease|flags|reserved)$/) return 1
    if (name[i] ~ /^(model|model_path|path|prompt|trace)$/) return 1
    if (owner[i] == "bn_constraint" && name[i] != "json_flags") return 1
    if (text[i] ~ /_callback |^void \*/) return name[i] != "on_logits"
    stem = name[i]
    return sub(/_count$/, "", stem) && has_field(owner[i], stem)
}

function type_of(s, list) {
    if (s ~ /bn_logit_bias \*/) return "Mapping[int, float]"
    if (s ~ / json;/) return "Json"
    if (s ~ /bn_adapter \*/) return "Adapter"
    if (s ~ /bn_model \*/) return "Model"
    if (s ~ /bn_logits_callback /) return "LogitsHook"
    if (s ~ /bn_string \*/) return list "[str]"
    if (s ~ /bn_string /) return "str"
    if (s ~ /const float \*/) return "array[float]"
    if (match(s, /bn_[a-z_]+ \*/)) return list "[" camel(substr(s, RSTART, RLENGTH - 2)) "]"
    if (match(s, /^bn_(latency|lengths) /)) return camel(substr(s, 1, RLENGTH - 1))
    if (s ~ /[*[]/) return list "[int]"
    return s ~ /^(float|double) / ? "float" : "int"
}

# The type of field `i` if it is a nested struct with room to grow, otherwise empty.
function nested(i, s) {
    s = text[i]
    return sub(/ [a-z_]+;$/, "", s) && has_field(s, "reserved") ? s : ""
}

# The option's name for a field. Names are unique, except a few that need their struct's name.
function option(i) {
    return owner[i] == "bn_chat" && name[i] == "json" ? "chat_json" : name[i]
}

function struct_class(i, called, base, list) {
    print "\n\nclass " public(called) "(" base "):"
    docstring(doc[i], "    ")
    members(name[i], list)
}

# The fields of a struct. Nested structs are replaced by their fields.
function members(struct, list, i) {
    for (i = 1; i <= count; i++) {
        if (kind[i] != "field" || owner[i] != struct || hidden(i)) continue
        if (nested(i) == "bn_constraint") continue # in ConstraintOptions
        if (nested(i) != "") { members(nested(i), list); continue }
        comment_above(doc[i], "    ")
        print "    " option(i) ": " type_of(text[i], list) (name[i] ~ /^(count|index)$/ ? "  # type: ignore[assignment]" : "")
    }
}

# Options that are fields of a struct nested in the request: the outer and the inner field.
function paths(i, k) {
    print "\n\n#: Where an option lies in `bn_request_params`, if inside of another struct."
    print "PATHS: Final = {"
    for (i = 1; i <= count; i++) {
        if (kind[i] != "field" || owner[i] != "bn_request_params" || nested(i) == "") continue
        for (k = 1; k <= count; k++)
            if (kind[k] == "field" && owner[k] == nested(i) && !hidden(k))
                print "    \"" option(k) "\": (\"" name[i] "\", \"" name[k] "\"),"
    }
    print "}"
}

# A struct's class. Structs that the library fills become tuples.
function class_of(i, stem) {
    stem = name[i]
    if (stem ~ /^bn_(string|error|span|logits|logit_bias|trace)$/ || has_field(stem, "reserved")) return
    if (stem == "bn_chat_message") struct_class(i, camel(stem), "TypedDict", "Sequence")
    else if (stem == "bn_question") struct_class(i, camel(stem), "TypedDict, total=False", "Sequence")
    else if (stem == "bn_request_params") {
        constraints()
        struct_class(i, "RequestOptions", "ConstraintOptions, total=False", "Sequence")
        flags("BN_REQUEST_")
        paths()
    } else if (sub(/_config$/, "_options", stem)) {
        struct_class(i, camel(stem), "TypedDict, total=False", "Sequence")
        if (stem == "bn_model_options") flags("BN_MODEL_")
    }
    else struct_class(i, camel(stem), "NamedTuple", "list")
}

# Constraints by kind, which replace `kind` and `text`, and JSON spelling.
function constraints(i, called, what) {
    print "\n\nclass " public("ConstraintOptions") "(TypedDict, total=False):"
    print "    \"\"\"One constraint of the output, and `json_flags`. `max_new_tokens` and stop strings may end it earlier.\"\"\"\n"
    for (i = 1; i <= count; i++) {
        if (name[i] !~ /^BN_CONSTRAINT_/ || name[i] ~ /_NONE$/) continue
        called = tolower(substr(name[i], 15))
        what = doc[i]
        sub(/ `text` is not set\./, "", what)
        comment_above(what, "    ")
        print "    " called ": " (called == "json_schema" ? "Schema" : called == "json_object" ? "bool" : "str")
    }
    members("bn_constraint", "Sequence")
}

# The flags that callers may set, as options.
function flags(family, i) {
    for (i = 1; i <= count; i++) {
        if (index(name[i], family) != 1 || name[i] ~ /_POLL_BY_ID$/) continue
        comment_above(doc[i], "    ")
        print "    " tolower(substr(name[i], length(family) + 1)) ": bool"
    }
}

function constants(i) {
    for (i = 1; i <= count; i++) {
        if (kind[i] != "constant" || number(text[i]) == "" || name[i] ~ /^BN_SPAN_/) continue
        comment_above(doc[i], "")
        print public(substr(name[i], 4)) ": Final = " number(text[i])
    }
}

function exceptions(i) {
    for (i = 1; i <= count; i++) {
        if (name[i] !~ /^BN_ERR_/) continue
        print "\n\nclass " public(camel(substr(name[i], 8)) "Error") "(Error):"
        docstring(doc[i], "    ")
        print "    name = \"" name[i] "\"\n    status = " substr(name[i], 4)
    }
}

# Array lengths as numbers, since cffi has no macros.
function declaration_of(s, i) {
    for (i = 1; i <= count; i++) if (kind[i] == "constant") sub("\\[" name[i] "\\]", "[" number(text[i]) "]", s)
    return s
}

function declarations(i) {
    print "\n\n#: For cffi.\nCDEF: Final = \"\"\""
    for (i = 1; i <= count; i++) {
        if (kind[i] ~ /^(type|forward|function)$/) print text[i]
        if (kind[i] != "struct") continue
        print "struct " name[i] " {"
        for (; kind[i + 1] == "field"; i++) print "    " declaration_of(text[i + 1])
        print "};"
    }
    print "\"\"\""
}

function exported(i) {
    print "\n\n__all__ = ["
    for (i = 1; i <= named; i++) print "    \"" names[i] "\","
    print "]"
}

END {
    print "\"\"\"Generated from include/bn_engine.h by tools/header/python.awk.\n"
    print "An option has the default 0 or none, unless its comment says otherwise.\n\"\"\"\n"
    print "from __future__ import annotations\n"
    print "from array import array"
    print "from collections.abc import Mapping, Sequence"
    print "from typing import TYPE_CHECKING, Final, NamedTuple, TypedDict\n"
    print "from ._error import Error\n"
    print "if TYPE_CHECKING:"
    print "    from ._adapter import Adapter"
    print "    from ._model import Model"
    print "    from ._types import Json, LogitsHook, Picture, Schema\n"
    constants()
    exceptions()
    for (i = 1; i <= count; i++) if (kind[i] == "struct") class_of(i)
    declarations()
    exported()
}
