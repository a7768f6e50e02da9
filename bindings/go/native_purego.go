//go:build !cgo || bn_engine_purego

package bnengine

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// loadError says why there is no library.
var loadError = load()

// The callbacks for C. A struct of two words comes as two arguments.
var (
	logCallback = purego.NewCallback(func(level uint32, text *byte, length uintptr, hooks unsafe.Pointer) {
		onLog(level, bn_string{data: text, length: length}, hooks)
	})
	progressCallback = purego.NewCallback(func(fraction float32, text *byte, length uintptr, hooks unsafe.Pointer) uintptr {
		return uintptr(onProgress(hooks))
	})
	logitsCallback = purego.NewCallback(func(row *bn_logits, hook unsafe.Pointer) uintptr {
		return uintptr(onLogits(row, hook))
	})
)

var (
	calloc func(n, size uintptr) unsafe.Pointer
	free   func(p unsafe.Pointer)
)

// places returns the paths to look for the library: the file that BN_ENGINE_LIBRARY names, or else beside the program
// and then the system's paths.
func places() []string {
	if file := os.Getenv("BN_ENGINE_LIBRARY"); file != "" {
		return []string{file}
	}
	name := fmt.Sprintf("libbn_engine.so.%d", BN_ABI_VERSION)
	if runtime.GOOS == "darwin" {
		name = fmt.Sprintf("libbn_engine.%d.dylib", BN_ABI_VERSION)
	}
	var list []string
	if program, err := os.Executable(); err == nil {
		if beside := filepath.Join(filepath.Dir(program), name); exists(beside) {
			list = append(list, beside)
		}
	}
	return append(list, name)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

// load finds the library and its functions. Without it, the texts of the library say so, and nothing else is
// called.
func load() error {
	err := find()
	if err != nil {
		text := []byte("unknown: the library is not there\x00")
		bn_version = func() *byte { return &text[0] }
		bn_status_name = func(bn_status) *byte { return &text[0] }
		bn_status_message = bn_status_name
		bn_finish_reason_name = func(uint32) *byte { return &text[0] }
	}
	return err
}

func find() error {
	var library uintptr
	var err error
	for _, place := range places() {
		if library, err = purego.Dlopen(place, purego.RTLD_NOW|purego.RTLD_LOCAL); err == nil {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("the library: %w; name its file in BN_ENGINE_LIBRARY", err)
	}
	for _, function := range functions {
		address, err := purego.Dlsym(library, function.name)
		if err != nil {
			return fmt.Errorf("the library is too old: %w", err)
		}
		purego.RegisterFunc(function.to, address)
	}
	purego.RegisterLibFunc(&calloc, purego.RTLD_DEFAULT, "calloc")
	purego.RegisterLibFunc(&free, purego.RTLD_DEFAULT, "free")
	return nil
}
