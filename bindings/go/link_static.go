//go:build bn_engine_static

package bnengine

// #cgo pkg-config: bn_engine-static
import "C"
