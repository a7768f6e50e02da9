package bnengine

// #include <bn_engine.h>
// #include <stdlib.h>
// extern int32_t bnengineLogits(bn_logits *row, void *hook);
import "C"

import (
	"fmt"
	"runtime/cgo"
	"sync"
	"unsafe"
)

// Logits are what a token is about to be sampled from. All of it is the hook's own: copies of the engine's.
type Logits struct {
	PromptTokens []uint32
	OutputTokens []uint32  // generated so far
	Logits       []float32 // of each token of the vocabulary, to be changed in place; -Inf forbids one
}

// LogitsHook changes a request's logits before each of its tokens. An error ends the request, which then has it.
//
// It is called on threads of the engine, for several requests at a time, and all requests wait for it: each call enters
// Go from C and copies the row there and back. The same output in every batch needs a hook that depends on its argument
// alone. It must not wait for the engine.
type LogitsHook func(Logits) error

// logitsHook is what bnengineLogits needs for one request. C gets a pointer to a handle of it.
type logitsHook struct {
	call   LogitsHook
	handle *cgo.Handle // in C's memory

	mu  sync.Mutex
	err error
}

func newLogitsHook(call LogitsHook) *logitsHook {
	h := &logitsHook{call: call, handle: (*cgo.Handle)(C.malloc(C.sizeof_uintptr_t))}
	*h.handle = cgo.NewHandle(h)
	return h
}

func (h *logitsHook) set(p *C.bn_request_params) {
	p.on_logits, p.on_logits_context = C.bn_logits_callback(C.bnengineLogits), unsafe.Pointer(h.handle)
}

func (h *logitsHook) free() {
	if h != nil {
		h.handle.Delete()
		C.free(unsafe.Pointer(h.handle))
	}
}

// failure returns what ended the request, or nil.
func (h *logitsHook) failure() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *logitsHook) run(row *C.bn_logits) error {
	to := unsafe.Slice((*float32)(unsafe.Pointer(row.logits)), int(row.vocab_size))
	logits := Logits{
		PromptTokens: goTokens(row.prompt_tokens, row.prompt_tokens_count),
		OutputTokens: goTokens(row.output_tokens, row.output_tokens_count),
		Logits:       append([]float32(nil), to...),
	}
	if err := h.call(logits); err != nil {
		return fmt.Errorf("OnLogits: %w", err)
	}
	copy(to, logits.Logits)
	return nil
}

//export bnengineLogits
func bnengineLogits(row *C.bn_logits, hook unsafe.Pointer) C.int32_t {
	h := (*cgo.Handle)(hook).Value().(*logitsHook)
	err := h.run(row)
	if err == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	return 1
}
