//go:build cgo && !bn_engine_purego && bn_engine_static

package bnengine

// #cgo pkg-config: bn_engine-static
import "C"
