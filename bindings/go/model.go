package bnengine

import (
	"context"
	"runtime"
	"sync"
	"unsafe"
)

// WeightType is the type that weights are converted to while a model is loaded.
type WeightType uint32

// The types of weights.
const (
	KeepWeights    WeightType = BN_WEIGHTS_KEEP
	WeightsQ8_0    WeightType = BN_WEIGHTS_Q8_0
	WeightsQ4_0    WeightType = BN_WEIGHTS_Q4_0
	WeightsTernary WeightType = BN_WEIGHTS_TERNARY
	WeightsInt8    WeightType = BN_WEIGHTS_INT8
)

// ModelOptions are the options of OpenModel.
type ModelOptions struct {
	Path        string // a GGUF file, a Hugging Face folder or builtin:echo; "": the model embedded in the library
	MemoryLimit uint64 // the most bytes that the weights may take
	Threads     int    // that load
	Weights     WeightType
	Embedding   WeightType
	Head        WeightType
	MTP         bool   // also load the model's block of multi-token prediction, which drafts (SpeculationDraft)
	DrafterPath string // a GGUF file of a drafter alone: a block of multi-token prediction, or an EAGLE-3 head
	// A GGUF file of the part that sees pictures ("mmproj"), of a model that is a GGUF file.
	PicturesPath string
	SkipZeros    bool // keep what lets BitNet b1.58 2B-4T read no weights that meet zeros; takes more memory
	// The kernel_config.ini of a GGUF file with TL1 or TL2 tensors; "": the one beside the file.
	KernelConfigPath string
	Log              func(LogLevel, string) // may be called on any goroutine, several at once; nil: no log
	LogLevel         LogLevel               // the most detailed level that Log gets; 0: LogWarn
}

// Model is a loaded model. Any number of engines may share it.
type Model struct {
	mu  sync.RWMutex // for writing: no call is under way
	ptr bn_model     // 0: closed
}

// OpenModel loads a model. It blocks a thread meanwhile. If ctx ends, loading stops.
func OpenModel(ctx context.Context, options ModelOptions) (*Model, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	var memory arena
	defer memory.free()
	hooks := newHooks(ctx, options.Log)
	defer hooks.free()
	var config bn_model_config
	bn_model_config_init(&config, sizeof_bn_model_config)
	config.path, config.kernel_config_path = memory.text(options.Path), memory.text(options.KernelConfigPath)
	config.drafter_path, config.pictures_path = memory.text(options.DrafterPath), memory.text(options.PicturesPath)
	config.memory_limit_bytes = options.MemoryLimit
	config.threads = count(options.Threads)
	config.weight_type = uint32(options.Weights)
	config.embedding_type = uint32(options.Embedding)
	config.head_type = uint32(options.Head)
	if options.MTP {
		config.flags |= BN_MODEL_MTP
	}
	if options.SkipZeros {
		config.flags |= BN_MODEL_SKIP_ZEROS
	}
	set(&config.log_level, uint32(options.LogLevel))
	config.log, config.log_context = hooks.callback(), hooks.handle
	config.progress, config.progress_context = progressCallback, hooks.handle
	var ptr bn_model
	if err := try(func(failure *bn_error) bn_status { return bn_model_open(&config, &ptr, failure) }); err != nil {
		if failed := err.(*Error); failed.Code == ErrCancelled {
			failed.cause = ctx.Err()
		}
		return nil, err
	}
	return newModel(ptr), nil
}

func newModel(ptr bn_model) *Model {
	m := &Model{ptr: ptr}
	runtime.SetFinalizer(m, (*Model).Close) // in case Close is not called
	return m
}

// Close frees the model. Engines that were made of it go on. It may be called again.
func (m *Model) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	bn_model_free(m.ptr) // 0 is ignored
	m.ptr = 0
	runtime.SetFinalizer(m, nil)
	return nil
}

// use makes a call with the model, which stays open meanwhile.
func (m *Model) use(call func(ptr bn_model, failure *bn_error) bn_status) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.ptr == 0 {
		return errClosed
	}
	return try(func(failure *bn_error) bn_status { return call(m.ptr, failure) })
}

// handle returns the C handle of the model, which the library checks; nil for no model.
func (m *Model) handle() (bn_model, error) {
	if m == nil {
		return 0, nil
	}
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.ptr == 0 {
		return 0, errClosed
	}
	return m.ptr, nil
}

// ModelInfo has the facts about a model.
type ModelInfo struct {
	Architecture, Name            string
	HasTokenizer, HasChatTemplate bool
	VocabSize, ContextLength      int
	Layers, HiddenSize, FFNSize   int
	Heads, KVHeads, HeadDim       int
	EmbeddingSize                 int // 0: it makes no embeddings
	Parameters, WeightBytes       uint64
	EndTokens                     []uint32
	BOS                           int // the token's id, or -1
	Pooling                       Pooling
	ScoresPairs                   bool // it has a head for Rerank
	Sees                          bool // it sees pictures (Request.Pictures)
	Encodes                       bool // it is an encoder: it embeds, and generates nothing
	Recommended                   Sampling
}

// Sampling has the values that a model's authors recommend, in its files. Values that they do not give are
// nil.
type Sampling struct {
	Temperature, TopP, MinP, RepetitionPenalty *float32
	TopK                                       *int
}

// Info returns the facts about the model.
func (m *Model) Info() (info ModelInfo, err error) {
	var c bn_model_info
	bn_model_info_init(&c, sizeof_bn_model_info)
	err = m.use(func(ptr bn_model, failure *bn_error) bn_status {
		status := bn_model_get_info(ptr, &c, failure)
		if status == BN_OK { // its texts belong to the model
			info = goInfo(&c)
		}
		return status
	})
	return info, err
}

func goInfo(c *bn_model_info) ModelInfo {
	return ModelInfo{
		Architecture: goText(c.architecture), Name: goText(c.name),
		HasTokenizer: c.has_tokenizer != 0, HasChatTemplate: c.has_chat_template != 0,
		VocabSize: int(c.vocab_size), ContextLength: int(c.context_length),
		Layers: int(c.layers), HiddenSize: int(c.hidden_size), FFNSize: int(c.ffn_size),
		Heads: int(c.heads), KVHeads: int(c.kv_heads), HeadDim: int(c.head_dim), EmbeddingSize: int(c.embedding_size),
		Parameters: c.parameters, WeightBytes: c.weight_bytes,
		EndTokens: goTokens(c.end_tokens, c.end_tokens_count), BOS: int(c.bos_token),
		Pooling: Pooling(c.pooling), ScoresPairs: c.scores_pairs != 0, Encodes: c.encodes != 0, Sees: c.sees != 0, Recommended: recommended(c),
	}
}

func recommended(c *bn_model_info) (s Sampling) {
	for _, field := range []struct {
		bit   uint32
		to    **float32
		value float32
	}{
		{BN_SAMPLING_FIELD_TEMPERATURE, &s.Temperature, c.temperature}, {BN_SAMPLING_FIELD_TOP_P, &s.TopP, c.top_p},
		{BN_SAMPLING_FIELD_MIN_P, &s.MinP, c.min_p},
		{BN_SAMPLING_FIELD_REPETITION_PENALTY, &s.RepetitionPenalty, c.repetition_penalty},
	} {
		if c.sampling_fields&field.bit != 0 {
			value := float32(field.value)
			*field.to = &value
		}
	}
	if c.sampling_fields&BN_SAMPLING_FIELD_TOP_K != 0 {
		k := int(c.top_k)
		s.TopK = &k
	}
	return s
}

// Tokenize returns the token ids of a text, with those that submitting it puts in front (BOS) if special is true.
func (m *Model) Tokenize(text string, special bool) ([]uint32, error) {
	var memory arena
	defer memory.free()
	s := memory.text(text)
	var flags uint32
	if special {
		flags = BN_TOKENIZE_ADD_SPECIAL
	}
	return sized[uint32](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return m.use(func(ptr bn_model, failure *bn_error) bn_status {
			return bn_model_tokenize(ptr, s, flags, (*uint32)(data), room, n, failure)
		})
	})
}

// Detokenize returns the text of tokens.
func (m *Model) Detokenize(tokens []uint32) (string, error) {
	var memory arena
	defer memory.free()
	ids, idCount := memory.tokens(tokens)
	text, err := sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return m.use(func(ptr bn_model, failure *bn_error) bn_status {
			return bn_model_detokenize(ptr, ids, idCount, (*byte)(data), room, n, failure)
		})
	})
	return string(text), err
}

// TokenBytes returns the exact bytes of a token, which may be part of a character; of a control token its name.
func (m *Model) TokenBytes(token uint32) ([]byte, error) {
	return sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return m.use(func(ptr bn_model, failure *bn_error) bn_status {
			return bn_model_token_bytes(ptr, token, (*byte)(data), room, n, failure)
		})
	})
}

// ChatTokens returns the token ids of a conversation, as submitting it makes them: the answer is begun.
func (m *Model) ChatTokens(messages []Message) ([]uint32, error) {
	var memory arena
	defer memory.free()
	return m.chatTokens(memory.conversation(messages))
}

// ChatText returns a conversation as text. It is for display and for tests.
func (m *Model) ChatText(messages []Message) (string, error) {
	var memory arena
	defer memory.free()
	return m.chatText(memory.conversation(messages))
}

// ChatJSONTokens returns the token ids of a conversation with tools, in the form of Request.Chat.
func (m *Model) ChatJSONTokens(chat any) ([]uint32, error) {
	var memory arena
	defer memory.free()
	text, err := memory.json("chat", chat)
	if err != nil {
		return nil, err
	}
	return m.chatTokens(bn_chat{json: text})
}

// ChatJSONText returns a conversation with tools, in the form of Request.Chat, as text. It is for display and for
// tests.
func (m *Model) ChatJSONText(chat any) (string, error) {
	var memory arena
	defer memory.free()
	text, err := memory.json("chat", chat)
	if err != nil {
		return "", err
	}
	return m.chatText(bn_chat{json: text})
}

func (m *Model) chatText(chat bn_chat) (string, error) {
	text, err := sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return m.use(func(ptr bn_model, failure *bn_error) bn_status {
			return bn_model_chat_format(ptr, &chat, (*byte)(data), room, n, failure)
		})
	})
	return string(text), err
}

func (m *Model) chatTokens(chat bn_chat) ([]uint32, error) {
	return sized[uint32](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return m.use(func(ptr bn_model, failure *bn_error) bn_status {
			return bn_model_chat_tokenize(ptr, &chat, (*uint32)(data), room, n, failure)
		})
	})
}

func goTokens(data *uint32, n uintptr) []uint32 {
	return append([]uint32(nil), unsafe.Slice((*uint32)(unsafe.Pointer(data)), int(n))...)
}
