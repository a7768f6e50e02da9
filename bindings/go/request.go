package bnengine

import (
	"math"
	"time"
)

// Message is a message of a conversation.
type Message struct {
	Role    string // system, user, assistant, or another that the model's template knows
	Content string // never becomes a control token
}

// Pooling is the way to make one vector of the hidden states of a prompt.
type Pooling uint32

// The ways to pool.
const (
	PoolingModel Pooling = BN_POOLING_MODEL
	PoolingLast  Pooling = BN_POOLING_LAST
	PoolingMean  Pooling = BN_POOLING_MEAN
	PoolingFirst Pooling = BN_POOLING_FIRST
)

// Normalization selects whether an embedding is divided by its length.
type Normalization uint32

// The ways to normalize.
const (
	NormalizationModel Normalization = BN_NORMALIZATION_MODEL // as the model's files say; if they do not, NormalizationUnit
	NormalizationNone  Normalization = BN_NORMALIZATION_NONE  // the vector as it is
	NormalizationUnit  Normalization = BN_NORMALIZATION_UNIT
)

// Sampler is a step that works on the distribution that a token is drawn from.
type Sampler uint32

// The samplers, in their usual order.
const (
	SamplerTemperature Sampler = BN_SAMPLER_TEMPERATURE
	SamplerTopNSigma   Sampler = BN_SAMPLER_TOP_N_SIGMA
	SamplerTopK        Sampler = BN_SAMPLER_TOP_K
	SamplerTypicalP    Sampler = BN_SAMPLER_TYPICAL_P
	SamplerTopP        Sampler = BN_SAMPLER_TOP_P
	SamplerMinP        Sampler = BN_SAMPLER_MIN_P
	SamplerXTC         Sampler = BN_SAMPLER_XTC
)

// Speculation is the source of drafted tokens, of which the model verifies several in one step.
type Speculation uint32

// The sources of drafts.
const (
	SpeculationDefault Speculation = BN_SPECULATION_DEFAULT // a request's: the engine's; an engine's: DraftModel, MTP or the text
	SpeculationOff     Speculation = BN_SPECULATION_OFF
	SpeculationLookup  Speculation = BN_SPECULATION_LOOKUP // the request's own text
	SpeculationDraft   Speculation = BN_SPECULATION_DRAFT  // the engine's DraftModel, or the model's own block (MTP)
)

// AllTokens as MaxTokens: as many as the engine's ContextLength leaves.
const AllTokens = -1

// Request is a prompt, given as one of Prompt, PromptTokens, Messages and Chat, and the options for it. bn_engine.h
// has the range of each field.
type Request struct {
	Prompt       string
	PromptTokens []uint32
	Messages     []Message
	Chat         any // a conversation with tools, as bn_chat.json has it: of it encoding/json makes an object

	// Pictures, for models that see (ModelInfo.Sees): one for each part {"type": "image"} of Chat, or each token that
	// stands for a picture.
	Pictures []Picture

	MaxTokens   int    // to generate; 0: 128; AllTokens
	MinTokens   uint32 // that come before an end token may
	StopStrings []string
	StopTokens  []uint32
	Constraint  Constraint // what the output must match
	JSON        JSON       // how constraints of JSON and calls of tools are spelled

	Seed                uint64  // the same seed, prompt and parameters give the same output
	Temperature         float32 // 0: always the most likely token
	TemperatureRange    float32 // by which it moves up and down with the entropy
	TemperatureExponent float32 // how it moves; 0: 1
	TopNSigma           float32
	TopK                int     // 0: all
	TypicalP            float32 // 0: 1, that is all
	TopP                float32 // 0: 1, that is all
	MinP                float32
	XTCProbability      float32
	XTCThreshold        float32   // 0: 0.1
	MirostatTau         float32   // above 0: in place of all samplers but temperature
	MirostatEta         float32   // 0: 0.1
	Samplers            []Sampler // their order; nil: that of their numbers

	RepetitionPenalty float32 // 0: 1, that is none
	FrequencyPenalty  float32
	PresencePenalty   float32
	PenaltyWindow     uint32  // of so many of the latest tokens; 0: of all
	DRYMultiplier     float32 // above 0: repetitions cost
	DRYBase           float32 // 0: 1.75
	DRYAllowedLength  uint32  // 0: 2
	DRYWindow         uint32
	DRYBreakers       []string // nil: a line break, a colon, a quotation mark and an asterisk; empty: none
	LogitBias         map[uint32]float32
	BadWords          []string
	OnLogits          LogitsHook // changes the logits before each token

	Timeout      time.Duration // from submit to the end; 0: the engine's; negative: none
	QueueTimeout time.Duration // from submit to the start
	DropLate     bool          // end it as soon as QueueTimeout is predicted to pass
	Priority     int8          // above 0: more urgent than others

	EchoPrompt   bool // the output begins with the prompt
	IgnoreEOS    bool // do not end at the model's end tokens
	ParseSpecial bool // control tokens spelled out in Prompt become those tokens: not for text from outside
	ParseOutput  bool // with Chat: tell reasoning and calls of tools from text
	MaxReasoning int  // with ParseOutput: tokens of reasoning, after which its end marker comes; 0: no bound; below 0: none at all
	NoCache      bool // take nothing from the prefix cache and leave nothing there
	CacheSalt    uint64
	Session      string // keeps the conversation's keys and values under this name for its next turn

	Logprobs       bool     // return each token's log probability, and
	TopLogprobs    int      // of so many of the most likely ones, and
	LogprobTokens  []uint32 // of these
	ChainLogprobs  bool     // of what the token is drawn from, not of the model's own
	PromptLogprobs bool     // with EchoPrompt: of the prompt's tokens too,
	LogprobsFrom   int      // from this position on
	Score          bool     // with Logprobs: generate nothing, return those of the prompt from LogprobsFrom on

	Adapter      *Adapter
	AdapterScale float32 // 0: 1

	Speculation Speculation // what drafts tokens; it changes no output
	DraftTokens int         // at most, for a step; 0: the engine's

	Pooling       Pooling       // Embed: how
	Normalization Normalization // Embed: whether the vector is divided by its length

	document  *string    // Rerank: what Prompt is asked of
	questions []Question // Decide: about the prompt
}

// params makes the C struct, which points into the arena.
func (r *Request) params(memory *arena) (p bn_request_params, err error) {
	bn_request_params_init(&p, sizeof_bn_request_params)
	p.prompt = memory.text(r.Prompt)
	p.chat = memory.conversation(r.Messages)
	if p.chat.json, err = memory.json("Chat", r.Chat); err != nil {
		return p, err
	}
	if p.constraint, err = r.Constraint.in(memory, r.JSON); err != nil {
		return p, err
	}
	if p.adapter, err = r.Adapter.handle(); err != nil {
		return p, err
	}
	set(&p.adapter_scale, r.AdapterScale)
	if r.MaxReasoning < 0 {
		p.max_reasoning_tokens = 0
	} else {
		set(&p.max_reasoning_tokens, count(r.MaxReasoning))
	}
	r.sampling(memory, &p.sampling)
	p.prompt_tokens, p.prompt_tokens_count = memory.tokens(r.PromptTokens)
	p.stop_tokens, p.stop_tokens_count = memory.tokens(r.StopTokens)
	p.stop_strings, p.stop_strings_count = memory.texts(r.StopStrings)
	p.session = memory.text(r.Session)
	p.cache_salt = r.CacheSalt
	if r.MaxTokens == AllTokens {
		p.max_new_tokens = 0
	} else {
		set(&p.max_new_tokens, count(r.MaxTokens))
	}
	p.min_new_tokens = r.MinTokens
	if r.Timeout < 0 {
		p.timeout_ms = BN_NO_LIMIT
	} else {
		p.timeout_ms = milliseconds(r.Timeout)
	}
	p.queue_timeout_ms = milliseconds(r.QueueTimeout)
	p.priority = uint32(BN_PRIORITY_DEFAULT + int(r.Priority))
	p.top_logprobs, p.logprobs_from = count(r.TopLogprobs), count(r.LogprobsFrom)
	p.logprob_tokens, p.logprob_tokens_count = memory.tokens(r.LogprobTokens)
	p.speculation, p.draft_tokens = uint32(r.Speculation), count(r.DraftTokens)
	p.embedding.pooling, p.embedding.normalization = uint32(r.Pooling), uint32(r.Normalization)
	if r.document != nil {
		p.document = memory.some(*r.document)
	}
	p.questions, p.questions_count = memory.questions(r.questions)
	p.pictures, p.pictures_count = memory.pictures(r.Pictures)
	if r.Score {
		p.task = BN_TASK_SCORE
	}
	for _, f := range []struct {
		on  bool
		bit uint32
	}{
		{r.EchoPrompt, BN_REQUEST_ECHO_PROMPT}, {r.IgnoreEOS, BN_REQUEST_IGNORE_EOS},
		{r.ParseSpecial, BN_REQUEST_PARSE_SPECIAL}, {r.Logprobs, BN_REQUEST_LOGPROBS},
		{r.NoCache, BN_REQUEST_NO_CACHE}, {r.DropLate, BN_REQUEST_DROP_LATE},
		{r.ParseOutput, BN_REQUEST_PARSE_OUTPUT},
		{r.ChainLogprobs, BN_REQUEST_CHAIN_LOGPROBS}, {r.PromptLogprobs, BN_REQUEST_PROMPT_LOGPROBS},
	} {
		if f.on {
			p.flags |= f.bit
		}
	}
	return p, nil
}

// sampling sets the sampling parameters.
func (r *Request) sampling(memory *arena, p *bn_sampling) {
	p.seed = r.Seed
	p.temperature, p.temperature_range = r.Temperature, r.TemperatureRange
	set(&p.temperature_exponent, r.TemperatureExponent)
	p.top_n_sigma, p.top_k, p.min_p = r.TopNSigma, count(r.TopK), r.MinP
	set(&p.typical_p, r.TypicalP)
	set(&p.top_p, r.TopP)
	p.xtc_probability = r.XTCProbability
	set(&p.xtc_threshold, r.XTCThreshold)
	p.mirostat_tau = r.MirostatTau
	set(&p.mirostat_eta, r.MirostatEta)
	p.samplers, p.samplers_count = memory.samplers(r.Samplers)
	set(&p.repetition_penalty, r.RepetitionPenalty)
	p.frequency_penalty, p.presence_penalty = r.FrequencyPenalty, r.PresencePenalty
	p.penalty_window = r.PenaltyWindow
	p.dry_multiplier, p.dry_window = r.DRYMultiplier, r.DRYWindow
	set(&p.dry_base, r.DRYBase)
	set(&p.dry_allowed_length, r.DRYAllowedLength)
	p.dry_breakers, p.dry_breakers_count = memory.texts(r.DRYBreakers)
	p.bad_words, p.bad_words_count = memory.texts(r.BadWords)
	p.logit_bias, p.logit_bias_count = memory.biases(r.LogitBias)
}

// set replaces a default, unless value is zero.
func set[T comparable](field *T, value T) {
	var zero T
	if value != zero {
		*field = value
	}
}

// count is a number that is out of range for the library if it is for
func count(n int) uint32 {
	if n < 0 || n > math.MaxInt32 {
		return math.MaxUint32
	}
	return uint32(n)
}

// milliseconds rounds up, so that a short time is not "none".
func milliseconds(d time.Duration) uint32 {
	return count(int((d + time.Millisecond - 1) / time.Millisecond))
}
