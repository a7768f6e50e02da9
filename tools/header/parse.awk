# Reads include/bn_engine.h into `count` items, in the header's order, for the programs beside this one:
#   awk -f tools/header/parse.awk -f tools/header/NAME.awk include/bn_engine.h
# kind[i]  constant, type, forward (declaration of a struct), struct, field (of owner[i]) or function; a struct's fields follow it
# name[i]  its name
# text[i]  the declaration on one line; of a constant its value
# doc[i]   the comment before it (// or /* */), lines joined by newlines, markers taken off
# overview is the header's first comment. Declarations end with their line; a field stands on lines of its own.

function trim(s) {
    sub(/^[ \t]+/, "", s)
    sub(/[ \t]+$/, "", s)
    return s
}

function add(a_kind, a_name, a_text) {
    count++
    kind[count] = a_kind
    name[count] = a_name
    text[count] = a_text
    owner[count] = aggregate
    doc[count] = comment
    comment = ""
}

function comment_line(s) {
    comment = comment (comment == "" ? "" : "\n") s
}

# Returns the line without its comments, whose text goes to `comment`.
function uncommented(line, at, rest) {
    if (in_comment) {
        at = index(line, "*/")
        rest = at ? substr(line, 1, at - 1) : line
        sub(/^[ \t]*\*?[ ]?/, "", rest)
        if (!at || trim(rest) != "") comment_line(rest)
        if (!at) return ""
        in_comment = 0
        comment_ended()
        return uncommented(substr(line, at + 2))
    }
    if (trim(line) ~ /^\/\//) {
        sub(/^[ \t]*\/\/[\/!]?[ ]?/, "", line)
        comment_line(line)
        return ""
    }
    if ((at = index(line, "/*")) > 0) {
        in_comment = 1
        rest = substr(line, at + 2)
        sub(/^\**<?[ ]?/, "", rest)
        # A comment of one line, or the first line of a longer one.
        if (index(rest, "*/")) return trim(substr(line, 1, at - 1) " " uncommented(rest))
        if (substr(line, at + 2) ~ /^\**\//) { in_comment = 0; return trim(substr(line, 1, at - 1)) }
        if (trim(rest) != "") comment_line(rest)
        return trim(substr(line, 1, at - 1))
    }
    if ((at = index(line, "//")) > 0) line = substr(line, 1, at - 1)
    return line
}

function comment_ended() {
    sub(/\n+$/, "", comment)
    if (overview == "" && count == 0) overview = comment
}

function constant(line, parts) {
    sub(/^#[ \t]*define[ \t]+/, "", line)
    if (line !~ /^BN_[A-Z0-9_]+[ \t]+[^ \t]/) return
    split(line, parts, /[ \t]+/)
    add("constant", parts[1], trim(substr(line, length(parts[1]) + 1)))
}

# The last identifier of a declarator: `const char *text`, `char message[504]`, `void (*f)(int)`.
function declared(s) {
    sub(/;$/, "", s)
    if (match(s, /\(\*[ ]*[a-z_0-9A-Z]+\)/)) {
        s = substr(s, RSTART + 2, RLENGTH - 3)
        return trim(s)
    }
    sub(/\(.*$/, "", s)
    sub(/\[.*$/, "", s)
    s = trim(s)
    match(s, /[A-Za-z_0-9]+$/)
    return substr(s, RSTART)
}

function declaration(s) {
    gsub(/[ \t]+/, " ", s)
    gsub(/\( /, "(", s)
    s = trim(s)
    if (aggregate != "" && enumeration) {
        sub(/,$/, "", s)
        add("constant", declared(substr(s, 1, index(s " =", "=") - 1)), trim(substr(s, index(s, "=") + 1)))
    } else if (aggregate != "") add("field", declared(s), s)
    else if (s ~ /^typedef struct / && comment == "") add("forward", declared(s), s)
    else if (s ~ /^typedef /) add("type", declared(s), s)
    else if (s ~ /\(/) add("function", declared(s), s)
    else comment = ""
}

function code(line) {
    if (skipping) {
        if (line ~ /^[}]/) skipping = 0
        return
    }
    if (aggregate == "" && line ~ /^static /) {
        skipping = line !~ /[;}]$/
        comment = ""
        return
    }
    if (aggregate == "" && match(line, /^(typedef )?(struct|union|enum)[^;(]*[{]$/)) {
        enumeration = line ~ /enum/
        aggregate = line
        sub(/^(typedef )?(struct|union|enum) */, "", aggregate)
        sub(/ *[{]$/, "", aggregate)
        if (aggregate == "") aggregate = "anonymous"
        if (!enumeration) {
            add("struct", aggregate, "")
        }
        comment = ""
        return
    }
    if (aggregate != "" && line ~ /^[}]/) {
        if (pending != "") declaration(pending)
        pending = ""
        aggregate = ""
        return
    }
    pending = pending (pending == "" ? "" : " ") line
    if (line ~ /;$/ || (enumeration && aggregate != "" && line ~ /,$/)) {
        declaration(pending)
        pending = ""
    }
}

{
    line = trim(uncommented($0))
    if (line == "") {
        # A comment followed by a blank line documents nothing.
        if (trim($0) == "" && !in_comment && pending == "") comment = ""
        next
    }
    if (line ~ /^#[ \t]*if.*__cplusplus/) in_cplusplus = 1
    if (in_cplusplus) {
        if (line ~ /^#[ \t]*endif/) in_cplusplus = 0
        comment = ""
        next
    }
    if (line ~ /^#/) {
        constant(line)
        comment = ""
        next
    }
    code(line)
}
