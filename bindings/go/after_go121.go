//go:build go1.21

package bnengine

import "context"

const goroutinePerContext = false

// afterDone calls f in a goroutine of its own once ctx is done, unless stop was called before.
func afterDone(ctx context.Context, f func()) (stop func() bool) { return context.AfterFunc(ctx, f) }
