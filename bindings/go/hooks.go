package bnengine

import (
	"context"
	"unsafe"
)

// LogLevel is the importance of a line of the log, and selects the lines to log.
type LogLevel uint32

// The levels, the most important first.
const (
	LogError LogLevel = BN_LOG_ERROR
	LogWarn  LogLevel = BN_LOG_WARN
	LogInfo  LogLevel = BN_LOG_INFO
	LogDebug LogLevel = BN_LOG_DEBUG
)

// hooks are the Go values that the library's callbacks need. C gets a pointer to a handle of them.
type hooks struct {
	ctx    context.Context // OpenModel's
	log    func(LogLevel, string)
	handle unsafe.Pointer
}

func newHooks(ctx context.Context, log func(LogLevel, string)) *hooks {
	h := &hooks{ctx: ctx, log: log}
	h.handle = newHandle(h)
	return h
}

func (h *hooks) free() {
	freeHandle(h.handle)
}

// callback returns the C callback that logs, or 0.
func (h *hooks) callback() uintptr {
	if h.log == nil {
		return 0
	}
	return logCallback
}

func onLog(level uint32, message bn_string, h unsafe.Pointer) {
	valueOf(h).(*hooks).log(LogLevel(level), goText(message))
}

func onProgress(h unsafe.Pointer) int32 {
	if valueOf(h).(*hooks).ctx.Err() != nil {
		return 1 // stops loading
	}
	return 0
}
