package bnengine

import (
	"fmt"
	"sync"
	"unsafe"
)

// Logits are the logits from which a token is about to be sampled, with the request's tokens. All of it is a
// copy that the hook owns.
type Logits struct {
	PromptTokens []uint32
	OutputTokens []uint32  // generated so far
	Logits       []float32 // of each token of the vocabulary, to be changed in place; -Inf forbids one
}

// LogitsHook changes a request's logits before each of its tokens. An error ends the request, and becomes its
// error.
//
// It is called on threads of the engine, for several requests at a time, and all requests wait for it: each call enters
// Go from C and copies the row there and back. The output is the same in every batch only if the hook depends on its
// argument alone. It must not wait for the engine.
type LogitsHook func(Logits) error

// logitsHook is the state that onLogits needs for one request. C gets a pointer to a handle of it.
type logitsHook struct {
	call   LogitsHook
	handle unsafe.Pointer

	mu  sync.Mutex
	err error
}

func newLogitsHook(call LogitsHook) *logitsHook {
	h := &logitsHook{call: call}
	h.handle = newHandle(h)
	return h
}

func (h *logitsHook) set(p *bn_request_params) {
	p.sampling.on_logits, p.sampling.on_logits_context = logitsCallback, h.handle
}

func (h *logitsHook) free() {
	if h != nil {
		freeHandle(h.handle)
	}
}

// failure returns the error that ended the request, or nil.
func (h *logitsHook) failure() error {
	if h == nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.err
}

func (h *logitsHook) run(row *bn_logits) error {
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

func onLogits(row *bn_logits, hook unsafe.Pointer) int32 {
	h := valueOf(hook).(*logitsHook)
	err := h.run(row)
	if err == nil {
		return 0
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.err = err
	return 1
}
