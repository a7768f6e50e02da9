//go:build !go1.21

package bnengine

import "context"

const goroutinePerContext = true

// afterDone is context.AfterFunc, which older versions of Go lack: here a goroutine waits.
func afterDone(ctx context.Context, f func()) (stop func() bool) {
	stopped := make(chan struct{})
	go func() {
		select {
		case <-ctx.Done():
			f()
		case <-stopped:
		}
	}()
	return func() bool { close(stopped); return true }
}
