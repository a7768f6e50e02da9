# Prints items that use a struct before its definition: people read the header from the top.
END {
    for (i = 1; i <= count; i++) if (kind[i] == "struct") defined[name[i]] = i
    for (i = 1; i <= count; i++) {
        if (kind[i] != "function" && kind[i] != "field") continue
        n = split(text[i], words, /[^a-z_0-9]+/)
        for (k = 1; k <= n; k++)
            if (defined[words[k]] > i) print (kind[i] == "field" ? owner[i] "." : "") name[i] " stands before " words[k]
    }
}
