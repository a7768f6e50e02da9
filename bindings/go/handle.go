package bnengine

import (
	"sync"
	"sync/atomic"
	"unsafe"
)

// C must not keep Go pointers, so it gets a pointer to a number in its own memory. (Without cgo there is no
// runtime/cgo.)
var (
	handled     sync.Map // values by their numbers
	lastHandled uint64
)

func newHandle(value any) unsafe.Pointer {
	n := atomic.AddUint64(&lastHandled, 1)
	handled.Store(n, value)
	h := calloc(1, 8)
	*(*uint64)(h) = n
	return h
}

func valueOf(h unsafe.Pointer) any {
	value, _ := handled.Load(*(*uint64)(h))
	return value
}

func freeHandle(h unsafe.Pointer) {
	handled.Delete(*(*uint64)(h))
	free(h)
}
