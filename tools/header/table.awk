# A C program that prints the interface as a table, a line each: constants' values, structs' sizes, fields' offsets, sizes and
# types, types' and functions' declarations without the parameters' names.

# A declarator without the name: the last word of two, or of one after a star.
function unnamed(s) {
    s = trim(s)
    if (s ~ /[ *][A-Za-z_0-9]+$/) sub(/[A-Za-z_0-9]+$/, "", s)
    return trim(s)
}

function prototype(s, open, head, parts, n, i, out) {
    sub(/;$/, "", s)
    open = index(s, "(")
    if (match(s, /\(\*[^)]*\)\(/)) open = RSTART + RLENGTH - 1
    head = substr(s, 1, open)
    s = substr(s, open + 1)
    sub(/\)[^)]*$/, "", s)
    n = split(s, parts, ",")
    for (i = 1; i <= n; i++) out = out (i > 1 ? ", " : "") unnamed(parts[i])
    return head out ")"
}

function field_type(s, field) {
    sub(/;$/, "", s)
    if (s ~ /\[/) return trim(substr(s, 1, index(s, field "[") - 1)) substr(s, index(s, "["))
    return unnamed(s)
}

function quoted(s) {
    gsub(/\\/, "\\\\", s)
    gsub(/"/, "\\\"", s)
    gsub(/%/, "%%", s)
    return s
}

function grows(struct, i) {
    for (i = 1; i <= count; i++)
        if (kind[i] == "field" && owner[i] == struct) return name[i] == "struct_size"
    return 0
}

END {
    print "#include <stddef.h>\n#include <stdio.h>\n#include \"bn_engine.h\"\nint main(void) {"
    for (i = 1; i <= count; i++) {
        n = name[i]
        if (kind[i] == "constant" && text[i] ~ /^"/) printf "printf(\"constant %s \\\"%%s\\\"\\n\", %s);\n", n, n
        else if (kind[i] == "constant") printf "printf(\"constant %s %%lld\\n\", (long long)%s);\n", n, n
        else if (kind[i] == "struct")
            printf "printf(\"struct %s %%zu bytes, aligned to %%zu%s\\n\", sizeof(%s), _Alignof(%s));\n",
                n, grows(n) ? ", grows" : "", n, n
        else if (kind[i] == "field") {
            s = owner[i]
            printf "printf(\"field %s.%s at %%zu, %%zu bytes, %s\\n\", offsetof(%s, %s), sizeof(((%s *)0)->%s));\n",
                s, n, quoted(field_type(text[i], n)), s, n, s, n
        } else printf "printf(\"%s %s %s\\n\");\n", kind[i], n, quoted(text[i] ~ /\(/ ? prototype(text[i]) : text[i])
    }
    print "return 0;\n}"
}
