# compare.awk OLD NEW: two tables of the interface (tools/header/table.awk). Changes that break programs that were
# compiled against the old one are printed as "breaks: ..." and make the exit status 1; additions are printed as "added:
# ...". No break: a struct that begins with struct_size is longer; a field stands where there was `reserved` room; the
# version's numbers.

FNR == 1 { file++ }
$2 ~ /^BN_VERSION(_|$)/ { next }
{
    key = $1 " " $2
    order[++lines] = key
    from[lines] = file
    table[file, key] = $0
}

function fails(what) {
    print "breaks: " what
    broken = 1
}

# The remaining `reserved` room, if any, ends at the same offset as before.
function rest_of_room(old, new, o, n) {
    split(old, o, " ")
    split(new, n, " ")
    return new == "" || n[4] + 0 > o[4] + 0 && n[4] + n[5] == o[4] + o[5]
}

function check(key, old, new, o, n) {
    if (old == new) return
    if (key ~ /\.reserved$/ && rest_of_room(old, new)) {
        sub(/^field /, "", key)
        sub(/\.reserved$/, "", key)
        print "added: struct " key " uses room that was reserved"
        return
    }
    if (new == "") {
        fails("gone: " old)
        return
    }
    split(old, o, " ")
    split(new, n, " ")
    if (key ~ /^struct / && old ~ /, grows$/ && new ~ /, grows$/ && o[3] <= n[3] && o[7] == n[7])
        print "added: " key " has " n[3] " bytes, had " o[3]
    else fails("was: " old "\n         is: " new)
}

END {
    for (i = 1; i <= lines; i++) {
        key = order[i]
        if (from[i] == 1) check(key, table[1, key], table[2, key])
        else if (!((1, key) in table)) print "added: " table[2, key]
    }
    exit broken
}
