//go:build cgo && !bn_engine_purego

package bnengine

// #include <bn_engine.h>
// #include <stdlib.h>
// extern void bnengineLog(uint32_t level, bn_string message, void *hooks);
// extern int32_t bnengineProgress(float fraction, bn_string what, void *hooks);
// extern int32_t bnengineLogits(bn_logits *row, void *hook);
import "C"

import "unsafe"

// loadError says why there is no library. With cgo, the program would not have started.
var loadError error

// The callbacks for C.
var (
	logCallback      = uintptr(unsafe.Pointer(C.bn_log_callback(C.bnengineLog)))
	progressCallback = uintptr(unsafe.Pointer(C.bn_progress_callback(C.bnengineProgress)))
	logitsCallback   = uintptr(unsafe.Pointer(C.bn_logits_callback(C.bnengineLogits)))
)

func calloc(n, size uintptr) unsafe.Pointer { return C.calloc(C.size_t(n), C.size_t(size)) }

func free(p unsafe.Pointer) { C.free(p) }

//export bnengineLog
func bnengineLog(level C.uint32_t, message C.bn_string, hooks unsafe.Pointer) {
	onLog(uint32(level), *(*bn_string)(unsafe.Pointer(&message)), hooks)
}

//export bnengineProgress
func bnengineProgress(fraction C.float, what C.bn_string, hooks unsafe.Pointer) C.int32_t {
	return C.int32_t(onProgress(hooks))
}

//export bnengineLogits
func bnengineLogits(row *C.bn_logits, hook unsafe.Pointer) C.int32_t {
	return C.int32_t(onLogits((*bn_logits)(unsafe.Pointer(row)), hook))
}
