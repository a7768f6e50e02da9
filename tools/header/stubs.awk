# A C file that defines every function, so that debug information covers the whole interface. Never run.
END {
    print "#include \"bn_engine.h\""
    for (i = 1; i <= count; i++) {
        if (kind[i] != "function") continue
        s = text[i]
        sub(/[^)]*;$/, "", s)
        print s " { for (;;) { } }"
    }
}
