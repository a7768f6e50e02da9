package bnengine

import (
	"runtime"
	"sync"
)

// Adapter is a LoRA adapter of an engine, for Request.Adapter.
type Adapter struct {
	mu  sync.Mutex
	ptr bn_adapter // 0: closed
}

// OpenAdapter reads an adapter: a PEFT folder, or a GGUF file of llama.cpp. Requests go on meanwhile. Close it after
// use.
func (e *Engine) OpenAdapter(path string) (*Adapter, error) {
	var memory arena
	defer memory.free()
	s := memory.text(path)
	var adapter bn_adapter
	err := e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_adapter_open(ptr, s, &adapter, failure)
	})
	if err != nil {
		return nil, err
	}
	a := &Adapter{ptr: adapter}
	runtime.SetFinalizer(a, (*Adapter).Close) // in case Close is not called
	return a, nil
}

// Fingerprint returns a hash of the adapter's contents, the same in each engine that opens it.
func (a *Adapter) Fingerprint() (uint64, error) {
	ptr, err := a.handle()
	if err != nil {
		return 0, err
	}
	var hash uint64
	err = try(func(*bn_error) bn_status { return bn_adapter_fingerprint(ptr, &hash) })
	return hash, err
}

// Close frees the adapter. Requests that have it keep it. It may be called again.
func (a *Adapter) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	bn_adapter_free(a.ptr) // 0 is ignored
	a.ptr = 0
	runtime.SetFinalizer(a, nil)
	return nil
}

// handle returns the C handle of the adapter, which the library checks; nil for no adapter.
func (a *Adapter) handle() (bn_adapter, error) {
	if a == nil {
		return 0, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ptr == 0 {
		return 0, errClosed
	}
	return a.ptr, nil
}
