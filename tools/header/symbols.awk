# The functions' names.
END {
    for (i = 1; i <= count; i++) if (kind[i] == "function") print name[i]
}
