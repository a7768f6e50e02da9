//go:build go1.23

package bnengine

import (
	"errors"
	"iter"
	"testing"
)

func TestRange(t *testing.T) {
	e := open(t, Options{Path: slow})
	s, err := e.Stream(ctx, Request{Prompt: "part by part"})
	ok(t, err)
	var chunks iter.Seq2[Chunk, error] = s.Chunks()
	text := ""
	for chunk, err := range chunks {
		ok(t, err)
		text += chunk.Text
	}
	if text != "part by part" {
		t.Fatalf("%q", text)
	}
	s, err = e.Stream(ctx, endless)
	ok(t, err)
	for _, err := range s.Chunks() {
		ok(t, err)
		break // cancels
	}
	if _, err := s.Wait(); !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
}
