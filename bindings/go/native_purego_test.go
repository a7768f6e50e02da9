//go:build !cgo || bn_engine_purego

package bnengine

import (
	"errors"
	"os"
	"strings"
	"testing"
)

// test.sh runs this test alone, without a library in the environment.
func TestMissingLibrary(t *testing.T) {
	if os.Getenv("BN_ENGINE_LIBRARY") != "/nowhere" {
		t.Skip("the library is there")
	}
	_, err := NewEngine(Options{})
	if !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "BN_ENGINE_LIBRARY") {
		t.Fatal(err)
	}
	if Version() == "" || ErrBusy.Error() == "" {
		t.Fatal("texts are empty")
	}
}
