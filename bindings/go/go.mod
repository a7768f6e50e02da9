module bnengine

go 1.19

require github.com/ebitengine/purego v0.10.1
