package bnengine

// #include <bn_engine.h>
import "C"

import (
	"math"
	"time"
)

// Message is a message of a conversation.
type Message struct {
	Role    string // system, user, assistant, or another that the model's template knows
	Content string // never becomes a control token
}

// Pooling says what makes one vector of the hidden states of a prompt.
type Pooling int32

// The ways to pool.
const (
	PoolingModel Pooling = C.BN_POOLING_MODEL
	PoolingLast  Pooling = C.BN_POOLING_LAST
	PoolingMean  Pooling = C.BN_POOLING_MEAN
	PoolingFirst Pooling = C.BN_POOLING_FIRST
)

// AllTokens as MaxTokens: as many as the engine's MaxSequenceLength leaves.
const AllTokens = -1

// Request is a prompt, as one of Prompt, PromptTokens and Messages, and what to do with it.
type Request struct {
	Prompt       string
	PromptTokens []uint32
	Messages     []Message

	MaxTokens   int // to generate; 0: 128; AllTokens
	StopStrings []string
	StopTokens  []uint32

	Seed              uint64  // the same seed, prompt and parameters give the same output
	Temperature       float32 // 0: always the most likely token
	TopK              int     // 0: all
	TopP              float32 // 0: 1, that is all
	MinP              float32
	RepetitionPenalty float32 // 0: 1, that is none
	FrequencyPenalty  float32
	PresencePenalty   float32

	Timeout      time.Duration // from submit to the end; 0: the engine's; negative: none
	QueueTimeout time.Duration // from submit to the start
	DropLate     bool          // end it as soon as QueueTimeout is predicted to pass
	Priority     int8          // above 0: more urgent than others

	EchoPrompt   bool // the output begins with the prompt
	IgnoreEOS    bool // do not end at the model's end tokens
	ParseSpecial bool // control tokens spelled out in Prompt become those tokens: not for text from outside
	Logprobs     bool // return each token's log probability, and
	TopLogprobs  int  // of so many of the most likely ones
	NoCache      bool // take nothing from the prefix cache and leave nothing there
	CacheSalt    uint64
	Session      string // keeps the conversation's keys and values under this name for its next turn

	Pooling      Pooling // Embed: how
	Unnormalized bool    // Embed: do not divide the vector by its length
}

// params makes the C struct, which points into memory.
func (r *Request) params(memory *arena) (p C.bn_request_params) {
	C.bn_request_params_init(&p, C.sizeof_bn_request_params)
	p.prompt = memory.text(r.Prompt)
	p.prompt_tokens, p.prompt_tokens_count = memory.tokens(r.PromptTokens)
	p.messages, p.messages_count = memory.messages(r.Messages)
	p.stop_tokens, p.stop_tokens_count = memory.tokens(r.StopTokens)
	p.stop_strings, p.stop_strings_count = memory.texts(r.StopStrings)
	p.session = memory.text(r.Session)
	p.seed, p.cache_salt = C.uint64_t(r.Seed), C.uint64_t(r.CacheSalt)
	if r.MaxTokens == AllTokens {
		p.max_new_tokens = 0
	} else {
		set(&p.max_new_tokens, count(r.MaxTokens))
	}
	p.temperature, p.top_k, p.min_p = C.float(r.Temperature), count(r.TopK), C.float(r.MinP)
	set(&p.top_p, C.float(r.TopP))
	set(&p.repetition_penalty, C.float(r.RepetitionPenalty))
	p.frequency_penalty, p.presence_penalty = C.float(r.FrequencyPenalty), C.float(r.PresencePenalty)
	if r.Timeout < 0 {
		p.timeout_ms = C.BN_TIMEOUT_NONE
	} else {
		p.timeout_ms = milliseconds(r.Timeout)
	}
	p.queue_timeout_ms = milliseconds(r.QueueTimeout)
	p.priority = C.uint32_t(C.BN_PRIORITY_DEFAULT + int(r.Priority))
	p.top_logprobs = count(r.TopLogprobs)
	p.pooling = C.int32_t(r.Pooling)
	for _, f := range []struct {
		on  bool
		bit C.uint32_t
	}{
		{r.EchoPrompt, C.BN_REQUEST_ECHO_PROMPT}, {r.IgnoreEOS, C.BN_REQUEST_IGNORE_EOS},
		{r.ParseSpecial, C.BN_REQUEST_PARSE_SPECIAL}, {r.Logprobs, C.BN_REQUEST_LOGPROBS},
		{r.NoCache, C.BN_REQUEST_NO_CACHE}, {r.DropLate, C.BN_REQUEST_DROP_LATE},
		{r.Unnormalized, C.BN_REQUEST_EMBED_RAW},
	} {
		if f.on {
			p.flags |= f.bit
		}
	}
	return p
}

// set replaces a default, unless value is zero.
func set[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

// count is a number that is out of range for the library if it is for C.
func count(n int) C.uint32_t {
	if n < 0 || n > math.MaxInt32 {
		return math.MaxUint32
	}
	return C.uint32_t(n)
}

// milliseconds rounds up, so that a short time is not "none".
func milliseconds(d time.Duration) C.uint32_t {
	return count(int((d + time.Millisecond - 1) / time.Millisecond))
}
