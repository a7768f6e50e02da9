package bnengine

import (
	"context"
	"io"
	"sync"
	"time"
	"unsafe"
)

// FinishReason is the reason why a request ended.
type FinishReason uint32

// The ways to end.
const (
	FinishStop       FinishReason = BN_FINISH_STOP
	FinishStopString FinishReason = BN_FINISH_STOP_STRING
	FinishLength     FinishReason = BN_FINISH_LENGTH
	FinishCancelled  FinishReason = BN_FINISH_CANCELLED
	FinishTimedOut   FinishReason = BN_FINISH_TIMED_OUT
	FinishFailed     FinishReason = BN_FINISH_FAILED
	FinishEmbedding  FinishReason = BN_FINISH_EMBEDDING
)

func (r FinishReason) String() string { return goString(bn_finish_reason_name(uint32(r))) }

// Logprob is a token and the natural logarithm of its probability.
type Logprob struct {
	Token   uint32
	Logprob float32
}

// ToolCall is a call of a tool in an answer, or a part of one. The first part has an ID and a Name.
type ToolCall struct {
	Index     int // which of the answer's calls, from 0
	ID        string
	Name      string // as the model wrote it: not always a tool that there is
	Arguments string // JSON, or a part of it

	TextBefore int // bytes of the chunk's Text that the model wrote before it
}

// Chunk is a part of an output, or all of it.
type Chunk struct {
	Text      string // whole UTF-8 characters
	Tokens    []uint32
	Logprobs  [][]Logprob // of each token: its own, then TopLogprobs and LogprobTokens; nil without Request.Logprobs
	Reasoning string      // with Request.ParseOutput
	ToolCalls []ToolCall  // with Request.ParseOutput
}

// Usage has the token counts of a request.
type Usage struct {
	PromptTokens, GeneratedTokens, CachedTokens int
	DraftedTokens, AcceptedTokens               int // tokens that were drafted and verified, and those that stood
	ReasoningTokens                             int // generated, with Request.ParseOutput
	Queued, Prefill, FirstToken, Decode, Total  time.Duration
}

// Ending is the end of a request.
type Ending struct {
	Reason         FinishReason
	StopIndex      int // which of Request.StopTokens or StopStrings ended it, or -1
	ToolCallsTotal int // calls in the whole answer
	Usage          Usage
	vector         []float32
	decisions      []Decision
}

// Completion is a whole answer.
type Completion struct {
	Chunk
	Ending
}

// Stream is a request that was accepted. One goroutine at a time may receive; all other methods may be called from
// any goroutine. Parts that are not received are kept; close a stream that is not wanted any more.
type Stream struct {
	engine *Engine // keeps it open
	key    uint64
	wake   chan struct{} // holds a value if something is new
	done   chan struct{} // closed at the end

	ctx  context.Context
	hook *logitsHook // Request.OnLogits, or nil

	mu        sync.Mutex
	id        bn_request
	stop      func() bool // of the wait for the context's end
	text      []byte      // of pending
	reasoning []byte      // of pending
	pending   Chunk
	news      bool // pending has something

	ending Ending // these are set once, before done is closed
	err    error
}

// Recv returns the output since the last call, or waits for more. After the last part it returns io.EOF, or the
// error that ended the request.
func (s *Stream) Recv() (Chunk, error) {
	for {
		if chunk, ok := s.take(); ok {
			return chunk, nil
		}
		select {
		case <-s.wake:
		case <-s.done:
			if chunk, ok := s.take(); ok { // came with the end
				return chunk, nil
			}
			if s.err != nil {
				return Chunk{}, s.err
			}
			return Chunk{}, io.EOF
		}
	}
}

// Chunks returns an iterator, an iter.Seq2[Chunk, error], over the parts of the output as they come. An error is the
// last element. Leaving the loop cancels the request.
//
//	for chunk, err := range stream.Chunks() {
func (s *Stream) Chunks() func(yield func(Chunk, error) bool) {
	return func(yield func(Chunk, error) bool) {
		defer s.Close()
		for {
			chunk, err := s.Recv()
			if err == io.EOF || !yield(chunk, err) || err != nil {
				return
			}
		}
	}
}

// Wait waits for the end of the request and returns it. A request that was cancelled, timed out or failed also has an
// error.
func (s *Stream) Wait() (Ending, error) {
	<-s.done
	return s.ending, s.err
}

// Close cancels the request, if it still runs. It does not wait for the end. It may be called again.
func (s *Stream) Close() error {
	s.mu.Lock()
	id := s.id
	s.mu.Unlock()
	bn_cancel(s.engine.core.ptr, id, nil) // "not found" if it has ended
	return nil
}

func (s *Stream) take() (Chunk, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	chunk, ok := s.pending, s.news
	chunk.Text, chunk.Reasoning = string(s.text), string(s.reasoning)
	s.text, s.reasoning, s.pending, s.news = s.text[:0], s.reasoning[:0], Chunk{}, false
	return chunk, ok
}

// accepted is called when the request has an id. It may have ended by then.
func (s *Stream) accepted(id bn_request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.id = id
	select {
	case <-s.done:
	default:
		if s.ctx.Done() != nil {
			s.stop = afterDone(s.ctx, func() { s.Close() })
		}
	}
}

// add takes the content of an event. finish wakes those that wait for the end.
func (s *Stream) add(e *bn_event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e.text.length > 0 || e.tokens_count > 0 || e.reasoning.length > 0 || e.tool_calls_count > 0 {
		s.news = true
		s.pending.addCalls(unsafe.Slice(e.tool_calls, int(e.tool_calls_count)), len(s.text))
		s.text = append(s.text, view(e.text)...)
		s.reasoning = append(s.reasoning, view(e.reasoning)...)
		s.pending.Tokens = append(s.pending.Tokens, unsafe.Slice((*uint32)(unsafe.Pointer(e.tokens)), int(e.tokens_count))...)
		if n := int(e.logprobs_per_token); n > 0 {
			all := append([]Logprob(nil), unsafe.Slice((*Logprob)(unsafe.Pointer(e.logprobs)), int(e.logprobs_count))...)
			for ; len(all) > 0; all = all[n:] {
				s.pending.Logprobs = append(s.pending.Logprobs, all[:n:n])
			}
		}
	}
	if e.kind == BN_EVENT_COMPLETED {
		s.ending, s.err = ending(e), s.failure(e)
		return
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// addCalls adds parts of calls, which come in order. textBefore is the length of the text before their event's.
func (c *Chunk) addCalls(parts []bn_tool_call, textBefore int) {
	for i := range parts {
		part := &parts[i]
		if n := len(c.ToolCalls); n > 0 && c.ToolCalls[n-1].Index == int(part.index) {
			c.ToolCalls[n-1].Arguments += goText(part.arguments)
			continue
		}
		c.ToolCalls = append(c.ToolCalls, ToolCall{
			Index: int(part.index), ID: goText(part.id), Name: goText(part.name), Arguments: goText(part.arguments),
			TextBefore: textBefore + int(part.text_before),
		})
	}
}

// finish wakes all waiting goroutines. No event follows, and no call of the hook.
func (s *Stream) finish() {
	s.hook.free()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stop != nil {
		s.stop()
	}
	close(s.done)
}

func ending(e *bn_event) Ending {
	return Ending{
		Reason: FinishReason(e.finish_reason), StopIndex: int(e.stop_index), ToolCallsTotal: int(e.tool_calls_total),
		Usage: Usage{
			PromptTokens: int(e.prompt_tokens), GeneratedTokens: int(e.generated_tokens), CachedTokens: int(e.cached_tokens),
			DraftedTokens: int(e.drafted_tokens), AcceptedTokens: int(e.accepted_tokens),
			ReasoningTokens: int(e.reasoning_tokens),
			Queued:          time.Duration(e.queued_ns), Prefill: time.Duration(e.prefill_ns),
			FirstToken: time.Duration(e.first_token_ns), Decode: time.Duration(e.decode_ns), Total: time.Duration(e.total_ns),
		},
		vector:    append([]float32(nil), unsafe.Slice((*float32)(unsafe.Pointer(e.embedding)), int(e.embedding_count))...),
		decisions: decisions(e),
	}
}

func (s *Stream) failure(e *bn_event) error {
	if e.status == BN_OK {
		return nil
	}
	err := &Error{Code: Code(e.status), Message: goText(e.message)}
	if err.Code == ErrCancelled {
		if err.cause = s.hook.failure(); err.cause == nil {
			err.cause = s.ctx.Err()
		}
	}
	return err
}
