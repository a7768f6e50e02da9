# C declarations for the Go package: structs and constants (header.go), the functions by cgo (calls_cgo.go) and
# without it (calls_purego.go).
#   awk -v part=header|calls_cgo|calls_purego -f tools/header/parse.awk -f tools/header/go_c.awk include/bn_engine.h

# The value of a constant: `(1u << 3)` as `1 << 3`; empty if it is not a number.
function number(s, i) {
    for (i = 1; i <= count; i++) if (kind[i] == "constant" && name[i] == s) s = text[i]
    gsub(/[()]/, "", s)
    sub(/u?l*$/, "", s)
    sub(/u <</, " <<", s)
    return s ~ /^-?[0-9]+( << [0-9]+)?$/ ? s : ""
}

# A declarator's type: `char message[508]`, `const float *row`, `bn_engine **out`. Handles are only names; so are
# callbacks for Go.
function go_type(s, array, stars) {
    gsub(/const |struct /, "", s)
    sub(/;$/, "", s)
    if (match(s, /\[[^]]*\]/)) {
        array = "[" number(substr(s, RSTART + 1, RLENGTH - 2)) "]"
        s = substr(s, 1, RSTART - 1)
    }
    stars = gsub(/\*/, "", s)
    sub(/ .*/, "", s)
    if (s ~ /^bn_(engine|model|adapter)$/) stars--
    if (s ~ /_callback$/) s = "uintptr"
    if (s == "void") { stars--; s = "unsafe.Pointer" }
    if (s == "size_t") s = "uintptr"
    if (s == "char") s = "byte"
    if (s == "float") s = "float32"
    if (s == "double") s = "float64"
    if (s ~ /^u?int[0-9]+_t$/) sub(/_t$/, "", s)
    return array substr("****", 1, stars) s
}

# The size of a field. Structs have unnamed padding only at their end.
function size_of(s, elements, i, sum) {
    elements = 1
    if (match(s, /\[[^]]*\]/)) elements = number(substr(s, RSTART + 1, RLENGTH - 2))
    gsub(/const |struct /, "", s)
    if (s ~ /\*|_callback /) return 8 * elements
    sub(/ .*/, "", s)
    if (s ~ /64_t$|^size_t$|^double$|^bn_request$/) return 8 * elements
    if (s ~ /32_t$|^float$|^bn_status$/) return 4 * elements
    if (s ~ /8_t$|^char$/) return elements
    return struct_size(s) * elements
}

function struct_size(s, i, sum, words) {
    for (i = 1; i <= count; i++) {
        if (kind[i] != "field" || owner[i] != s) continue
        sum += size_of(text[i])
        words = words || text[i] ~ /\*|64_t |size_t |double |_callback |bn_/
    }
    return words && sum % 8 ? sum + 4 : sum
}

# `type`, a field's name, is a keyword in Go.
function go_name(s) {
    return s ~ /^(type|func|range|map|chan|var|go)$/ ? s "_" : s
}

# Lines of two columns, as gofmt aligns them.
function row(left, right) {
    lefts[++rows] = left
    rights[rows] = right
    if (length(left) > widest) widest = length(left)
}

function print_rows(i) {
    for (i = 1; i <= rows; i++) printf "\t%-" widest "s %s\n", lefts[i], rights[i]
    rows = widest = 0
}

function struct(i) {
    print "\ntype " name[i] " struct {"
    for (i++; kind[i] == "field"; i++) row(go_name(name[i]), go_type(text[i]))
    print_rows()
    print "}"
}

function header(i) {
    print "import \"unsafe\"\n\nconst ("
    for (i = 1; i <= count; i++) if (kind[i] == "constant" && number(text[i]) != "") row(name[i], "= " number(text[i]))
    for (i = 1; i <= count; i++) if (kind[i] == "struct") row("sizeof_" name[i], "= " struct_size(name[i]))
    print_rows()
    print ")\n\ntype bn_status = int32\ntype bn_request = uint64\n\n// Only names, which the library looks up."
    for (i = 1; i <= count; i++) if (text[i] ~ /^typedef struct / && !struct_size(name[i])) print "type " name[i] " uintptr"
    for (i = 1; i <= count; i++) if (kind[i] == "struct") struct(i)
    print "\n// It does not compile where a size is not the one counted above, which calls_cgo.go compares with C's."
    for (i = 1; i <= count; i++)
        if (kind[i] == "struct") print "var _ [sizeof_" name[i] "]byte = [unsafe.Sizeof(" name[i] "{})]byte{}"
}

# Parameters in `names` and `types`, their number returned.
function parameters(s, list, n, i) {
    sub(/^[^(]*\(/, "", s)
    sub(/\);$/, "", s)
    if (s == "void") return 0
    n = split(s, list, ", ")
    for (i = 1; i <= n; i++) {
        names[i] = declared(list[i])
        types[i] = go_type(list[i])
        gsub(/const /, "", list[i])
        sub(/[a-z_0-9]+$/, "", list[i])
        c_types[i] = list[i]
    }
    return n
}

function signature(n, i, out) {
    for (i = 1; i <= n; i++) out = out (i > 1 ? ", " : "") names[i] " " types[i]
    return out
}

function result(s) {
    sub(/\(.*/, "", s)
    return s ~ /^void / ? "" : " " go_type(s)
}

# An argument as cgo wants it. Pointers to C's types have the same target; handles and structs are read as C's.
function argument(i, s, stars) {
    s = c_types[i]
    stars = gsub(/\*/, "", s)
    gsub(/ /, "", s)
    if (s == "void") return names[i]
    s = substr("****", 1, stars) "C." s
    if (types[i] ~ /^bn_(engine|model|adapter|string)$/) return "*(*" s ")(unsafe.Pointer(&" names[i] "))"
    return stars ? "(" s ")(unsafe.Pointer(" names[i] "))" : s "(" names[i] ")"
}

function by_cgo(i, n, k, call, r) {
    print "\n// It does not compile where a size of header.go is not C's."
    for (i = 1; i <= count; i++)
        if (kind[i] == "struct") print "var _ [C.sizeof_" name[i] "]byte = [sizeof_" name[i] "]byte{}"
    for (i = 1; i <= count; i++) {
        if (kind[i] != "function") continue
        n = parameters(text[i])
        r = result(text[i])
        call = ""
        for (k = 1; k <= n; k++) call = call (k > 1 ? ", " : "") argument(k)
        call = "C." name[i] "(" call ")"
        if (r ~ /\*/) call = "(" substr(r, 2) ")(unsafe.Pointer(" call "))"
        else if (r != "") call = substr(r, 2) "(" call ")"
        print "\nfunc " name[i] "(" signature(n) ")" r " {\n\t" (r == "" ? "" : "return ") call "\n}"
    }
}

function by_purego(i) {
    print "var ("
    for (i = 1; i <= count; i++)
        if (kind[i] == "function") row(name[i], "func(" signature(parameters(text[i])) ")" result(text[i]))
    print_rows()
    print ")\n\n// functions are to be found in the library by their names.\nvar functions = []struct {\n\tname string\n\tto   any\n}{"
    for (i = 1; i <= count; i++) if (kind[i] == "function") print "\t{\"" name[i] "\", &" name[i] "},"
    print "}"
}

END {
    print "// Code generated by tools/header/go_c.awk from bn_engine.h. DO NOT EDIT.\n"
    if (part == "calls_purego") print "//go:build !cgo || bn_engine_purego\n"
    if (part == "calls_cgo") print "//go:build cgo && !bn_engine_purego\n"
    print "package bnengine\n"
    if (part == "calls_cgo") print "// #include <bn_engine.h>\nimport \"C\"\n\nimport \"unsafe\""
    if (part == "calls_purego") print "import \"unsafe\"\n"
    if (part == "header") header()
    if (part == "calls_cgo") by_cgo()
    if (part == "calls_purego") by_purego()
}
