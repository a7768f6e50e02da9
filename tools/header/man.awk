# Man pages of section 3 in the folder `out`: bn_engine.3 (overview, constants, types), one for each struct and each function.
#   awk -v out=DIR -v version=0.1.0 -f tools/header/parse.awk -f tools/header/man.awk include/bn_engine.h

function escaped(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    gsub(/`[^`]*`/, "\\fB&\\fR", s)
    gsub(/`/, "", s)
    sub(/^[.']/, "\\\\\\&&", s)
    return s
}

# The first sentence, for NAME lines, which must not have markup.
function summary(s, at) {
    sub(/\n\n.*/, "", s)
    gsub(/\n/, " ", s)
    gsub(/`/, "", s)
    gsub(/^@brief +/, "", s)
    if ((at = index(s, ". ")) > 0) s = substr(s, 1, at - 1)
    sub(/[.:]$/, "", s)
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    return s
}

function section(title) {
    print ".SH " title > page
}

# Prose, with @param, @return and the thread tag in sections of their own; `paragraph` is the macro between paragraphs.
function prose(s, paragraph, about, n, lines, i, line, into, rest, said, gap, returns, threads, params) {
    n = split(s, lines, "\n")
    for (i = 1; i <= n; i++) {
        line = trim(lines[i])
        if (line == "[not from a callback]") {
            threads = line
            into = ""
        } else if (line ~ /^@returns? /) {
            sub(/^@returns? */, "", line)
            returns = escaped(line)
            into = "returns"
        } else if (line ~ /^@param/) {
            sub(/^@param(\[[a-z,]*\])? */, "", line)
            rest = line
            sub(/^[^ ]+ */, "", rest)
            params = params ".TP\n.I " substr(line, 1, index(line " ", " ") - 1) "\n" escaped(rest) "\n"
            into = "params"
        } else if (line == "") {
            into = ""
            gap = said
        } else if (into == "returns") returns = returns "\n" escaped(line)
        else if (into == "params") params = params escaped(line) "\n"
        else {
            sub(/^@(brief|note) */, "", line)
            print (gap ? paragraph "\n" : "") escaped(line) > page
            said = 1
            gap = 0
        }
    }
    if (params != "") { section("PARAMETERS"); printf "%s", params > page }
    if (returns != "") { section("RETURN VALUE"); print returns > page }
    if (kind[about] == "function" && threads == "") { section("THREADS"); print "Any thread, at any time, callbacks included." > page }
    if (threads != "") { section("THREADS"); print "Any thread, at any time, but not a callback\\(aqs: there it gives\n.BR BN_ERR_REENTRANT ." > page }
}

function begin(title, what) {
    page = out "/" title ".3"
    print ".TH " toupper(title) " 3 \"\" \"bn_engine " version "\" \"bn_engine\"" > page
    section("NAME")
    print title " \\- " what > page
}

function verbatim(s) {
    gsub(/\\/, "\\e", s)
    gsub(/-/, "\\-", s)
    print s > page
}

function synopsis() {
    section("SYNOPSIS")
    print ".nf\n#include <bn_engine.h>\n" > page
}

function function_page(i, s) {
    begin(name[i], summary(doc[i]))
    synopsis()
    s = text[i]
    gsub(/, /, ",\n        ", s)
    verbatim(s)
    print ".fi" > page
    section("DESCRIPTION")
    prose(doc[i], ".PP", i)
}

function struct_page(i, f) {
    begin(name[i], summary(doc[i]))
    synopsis()
    verbatim("typedef struct " name[i] " {")
    for (f = i + 1; kind[f] == "field"; f++) verbatim("    " text[f])
    verbatim("} " name[i] ";")
    print ".fi" > page
    section("DESCRIPTION")
    prose(doc[i], ".PP", i)
    section("FIELDS")
    for (f = i + 1; kind[f] == "field"; f++) {
        print ".TP\n.B " name[f] > page
        prose(doc[f], ".IP", f)
    }
}

# Keeps the header's lines, since its paragraphs hang from words.
function overview_page(i, n, lines, between) {
    begin("bn_engine", summary(substr(overview, index(overview, ":") + 2)))
    synopsis()
    print ".fi" > page
    section("DESCRIPTION")
    print ".nf" > page
    n = split(overview, lines, "\n")
    for (i = 2; i <= n; i++) if (lines[i] !~ /^Generated from/) print (trim(lines[i]) == "" ? "" : escaped(lines[i])) > page
    print ".fi" > page
    listing("FUNCTIONS", "function")
    listing("STRUCTS", "struct")
    section("TYPES")
    for (i = 1; i <= count; i++) if (kind[i] == "type") {
        print between ".nf" > page
        between = ".PP\n"
        verbatim(text[i])
        print ".fi" > page
        prose(doc[i], ".PP", i)
    }
    section("CONSTANTS")
    for (i = 1; i <= count; i++) if (kind[i] == "constant") {
        print ".TP\n.BR " name[i] " (" escaped(text[i]) ")" > page
        prose(doc[i], ".IP", i)
    }
}

function listing(title, which, i) {
    section(title)
    for (i = 1; i <= count; i++)
        if (kind[i] == which) print ".TP\n.BR " name[i] " (3)\n" summary(doc[i]) > page
}

END {
    overview_page()
    close(page)
    for (i = 1; i <= count; i++) {
        if (kind[i] == "function") function_page(i)
        else if (kind[i] == "struct") struct_page(i)
        else continue
        section("SEE ALSO")
        print ".BR bn_engine (3)" > page
        close(page)
    }
}
