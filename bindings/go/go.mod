module bnengine

go 1.19
