# The names of the fields of `structs`, names with a space between.
END {
    for (i = 1; i <= count; i++)
        if (kind[i] == "field" && index(" " structs " ", " " owner[i] " ")) print name[i]
}
