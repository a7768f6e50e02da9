package bnengine

// #include <bn_engine.h>
import "C"

import (
	"runtime"
	"sync"
)

// Adapter is a LoRA adapter of an engine, for Request.Adapter.
type Adapter struct {
	mu  sync.Mutex
	ptr *C.bn_adapter // nil: closed
}

// OpenAdapter reads an adapter: a folder of PEFT's, or a GGUF file of llama.cpp's. Requests go on meanwhile. Close it.
func (e *Engine) OpenAdapter(path string) (*Adapter, error) {
	var memory arena
	defer memory.free()
	s := memory.text(path)
	a := &Adapter{}
	err := e.use(func(ptr *C.bn_engine, failure *C.bn_error) C.bn_status {
		return C.bn_adapter_open(ptr, s, &a.ptr, failure)
	})
	if err != nil {
		return nil, err
	}
	runtime.SetFinalizer(a, (*Adapter).Close) // in case it is forgotten
	return a, nil
}

// Fingerprint returns a hash of the adapter's contents, the same in each engine that opens it.
func (a *Adapter) Fingerprint() (uint64, error) {
	ptr, err := a.handle()
	if err != nil {
		return 0, err
	}
	var hash C.uint64_t
	err = try(func(*C.bn_error) C.bn_status { return C.bn_adapter_fingerprint(ptr, &hash) })
	return uint64(hash), err
}

// Close frees the adapter. Requests that have it keep it. It may be called again.
func (a *Adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	C.bn_adapter_free(a.ptr) // nil is ignored
	a.ptr = nil
	runtime.SetFinalizer(a, nil)
	return nil
}

// handle returns C's name of the adapter, which the library checks; nil for no adapter.
func (a *Adapter) handle() (*C.bn_adapter, error) {
	if a == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ptr == nil {
		return nil, errClosed
	}
	return a.ptr, nil
}
