package bnengine

// #include <bn_engine.h>
// #include <stdlib.h>
// extern void bnengineLog(int32_t level, bn_string message, void *hooks);
// extern int32_t bnengineProgress(float fraction, bn_string what, void *hooks);
import "C"

import (
	"context"
	"runtime/cgo"
	"unsafe"
)

// LogLevel says how important a line of the log is, and which lines to log.
type LogLevel int32

// The levels, the most important first.
const (
	LogError LogLevel = C.BN_LOG_ERROR
	LogWarn  LogLevel = C.BN_LOG_WARN
	LogInfo  LogLevel = C.BN_LOG_INFO
	LogDebug LogLevel = C.BN_LOG_DEBUG
)

// hooks are the Go values that the library's callbacks need. C gets a pointer to a handle of them.
type hooks struct {
	ctx    context.Context // OpenModel's
	log    func(LogLevel, string)
	handle *cgo.Handle // in C's memory
}

func newHooks(ctx context.Context, log func(LogLevel, string)) *hooks {
	h := &hooks{ctx: ctx, log: log}
	h.handle = (*cgo.Handle)(C.malloc(C.sizeof_uintptr_t))
	*h.handle = cgo.NewHandle(h)
	return h
}

func (h *hooks) free() {
	h.handle.Delete()
	C.free(unsafe.Pointer(h.handle))
}

// callback returns what logs, or nil.
func (h *hooks) callback() C.bn_log_callback {
	if h.log == nil {
		return nil
	}
	return C.bn_log_callback(C.bnengineLog)
}

//export bnengineLog
func bnengineLog(level C.int32_t, message C.bn_string, h unsafe.Pointer) {
	(*cgo.Handle)(h).Value().(*hooks).log(LogLevel(level), goText(message))
}

//export bnengineProgress
func bnengineProgress(fraction C.float, what C.bn_string, h unsafe.Pointer) C.int32_t {
	if (*cgo.Handle)(h).Value().(*hooks).ctx.Err() != nil {
		return 1 // stops loading
	}
	return 0
}
