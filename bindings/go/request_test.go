package bnengine

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// Tests of the options of requests.

const story = "Once upon a time"

// sampled is a request whose answer depends on the sampling parameters.
func sampled() Request { return Request{Prompt: story, MaxTokens: 16, Temperature: 1.5} }

func answer(t *testing.T, e *Engine, r Request) *Completion {
	t.Helper()
	c, err := e.Generate(ctx, r)
	ok(t, err)
	return c
}

func TestSampling(t *testing.T) {
	e := open(t, Options{})
	plain := answer(t, e, sampled())
	first, err := e.Model()
	ok(t, err)
	defer first.Close()
	word, err := first.Detokenize(plain.Tokens[:1])
	ok(t, err)
	for i, change := range []func(*Request){
		func(r *Request) { r.TypicalP = 0.3 },
		func(r *Request) { r.TopNSigma = 0.5 },
		func(r *Request) { r.XTCProbability, r.XTCThreshold = 1, 0.05 },
		func(r *Request) { r.DRYMultiplier, r.DRYAllowedLength, r.DRYBreakers = 5, 1, []string{} },
		func(r *Request) { r.MirostatTau, r.MirostatEta = 0.5, 1 },
		func(r *Request) { r.TemperatureRange, r.TemperatureExponent = 1, 2 },
		func(r *Request) { r.LogitBias = map[uint32]float32{plain.Tokens[0]: float32(math.Inf(-1))} },
		func(r *Request) { r.BadWords = []string{word} },
	} {
		r := sampled()
		change(&r)
		if c := answer(t, e, r); c.Text == plain.Text {
			t.Errorf("change %d makes no difference: %q", i, c.Text)
		}
	}
	hot, cold := sampled(), sampled()
	hot.Temperature, hot.TopP, hot.Samplers = 3, 0.5, []Sampler{SamplerTemperature, SamplerTopP}
	cold.Temperature, cold.TopP, cold.Samplers = 3, 0.5, []Sampler{SamplerTopP, SamplerTemperature}
	if answer(t, e, hot).Text == answer(t, e, cold).Text {
		t.Error("the order of samplers makes no difference")
	}
	if n := answer(t, e, Request{Prompt: "17+25=", MinTokens: 10}).Usage.GeneratedTokens; n < 10 {
		t.Errorf("%d tokens, not 10", n)
	}
	for part, r := range map[string]Request{
		"typical_p": {TypicalP: 2}, "top_n_sigma": {TopNSigma: -1}, "xtc_threshold": {XTCThreshold: 2},
		"mirostat_eta": {MirostatEta: 2}, "dry_base": {DRYBase: 0.5}, "temperature_exponent": {TemperatureExponent: -1}, "a sampler is 99": {Samplers: []Sampler{99}},
		"adapter": {AdapterScale: 2}, "draft_tokens": {DraftTokens: 16}, "logprobs_from": {LogprobsFrom: 1},
		"logprob_tokens": {LogprobTokens: []uint32{1}},
	} {
		r.Prompt = story
		_, err := e.Generate(ctx, r)
		wants(t, err, ErrInvalidArgument, part)
	}
}

func TestLogprobs(t *testing.T) {
	e := open(t, Options{})
	r := Request{Prompt: story, MaxTokens: 1, Logprobs: true, LogprobTokens: []uint32{5, 6}}
	r.LogitBias = map[uint32]float32{5: float32(math.Inf(-1))}
	own := answer(t, e, r)
	r.ChainLogprobs = true
	chain := answer(t, e, r)
	if len(own.Logprobs[0]) != 3 || own.Logprobs[0][1].Token != 5 || math.IsInf(float64(own.Logprobs[0][1].Logprob), 0) {
		t.Errorf("%+v", own.Logprobs)
	}
	if !math.IsInf(float64(chain.Logprobs[0][1].Logprob), -1) {
		t.Errorf("%+v", chain.Logprobs)
	}
	r = Request{Prompt: story, MaxTokens: 1, Logprobs: true, EchoPrompt: true, PromptLogprobs: true, LogprobsFrom: 2}
	c := answer(t, e, r)
	for i, entry := range c.Logprobs {
		if math.IsNaN(float64(entry[0].Logprob)) != (i < 2) {
			t.Errorf("position %d has %f", i, entry[0].Logprob)
		}
	}
}

const schema = `{"type":"object","properties":{"on":{"type":"boolean"},"size":{"enum":["small","large"]}},
	"required":["on","size"],"additionalProperties":false,"x-guidance":{"whitespace_flexible":false}}`

func TestConstraints(t *testing.T) {
	e := open(t, Options{})
	type lamp struct {
		On   bool   `json:"on"`
		Size string `json:"size"`
	}
	var value map[string]any
	ok(t, json.Unmarshal([]byte(schema), &value))
	ok(t, e.CheckConstraint(JSONSchema(json.RawMessage(schema)), 0))
	for _, constraint := range []Constraint{JSONSchema(json.RawMessage(schema)), JSONSchema(value)} {
		c := answer(t, e, Request{Prompt: story, Temperature: 1, Constraint: constraint})
		var got lamp
		if err := json.Unmarshal([]byte(c.Text), &got); err != nil || (got.Size != "small" && got.Size != "large") {
			t.Errorf("%q: %v", c.Text, err)
		}
	}
	for want, constraint := range map[string]Constraint{
		`^\{`:                       JSONObject(),
		`^([a-f]{4}|[0-9]{3})$`:     Regex(`[a-f]{4}|[0-9]{3}`),
		`^<*x?>*$`:                  Lark(`start: "<" start ">" | "x"`),
		`^[a-c]{2,5}[!?]$`:          GBNF(`root ::= [a-c]{2,5} ("!" | "?")`),
		regexp.QuoteMeta(", there"): {},
	} {
		c := answer(t, e, Request{Prompt: story, MaxTokens: 12, Constraint: constraint})
		if !regexp.MustCompile(want).MatchString(c.Text) {
			t.Errorf("%q does not match %s", c.Text, want)
		}
	}
	ok(t, e.CheckConstraint(JSONObject(), JSONCompact))
	answer(t, e, Request{Prompt: story, MaxTokens: 1, Constraint: JSONObject(), JSON: JSONCompact})
	stats, err := e.Stats()
	ok(t, err)
	if stats.GrammarsCompiled != 7 || stats.GrammarsReused != 2 {
		t.Errorf("%d compiled, %d reused", stats.GrammarsCompiled, stats.GrammarsReused)
	}
	wants(t, e.CheckConstraint(Regex("a("), 0), ErrInvalidArgument, "constraint")
	wants(t, e.CheckConstraint(JSONSchema(func() {}), 0), ErrInvalidArgument, "JSONSchema")
	_, err = e.Generate(ctx, Request{Prompt: story, Constraint: GBNF("root ::= x")})
	wants(t, err, ErrInvalidArgument, "no rule named x")
}

// conversation makes the echo model, which answers with its prompt, say what a role does.
func conversation(role, content string) map[string]any {
	return map[string]any{
		"messages": []any{map[string]any{"role": role, "content": content}}, "add_generation_prompt": false,
		"tool_format": "hermes", "reasoning_format": "think",
	}
}

func TestTools(t *testing.T) {
	e := open(t, Options{Path: "builtin:echo?us_per_token=20"})
	const call = `<tool_call>{"name": "f", "arguments": {"unit": "C"}}</tool_call>`
	chat := conversation("Both", call+"\n"+call+"\ndone")
	chat["tools"] = []any{map[string]any{"type": "function", "function": map[string]any{"name": "f"}}}
	r := Request{Chat: chat, ParseOutput: true, MaxTokens: AllTokens}
	whole := answer(t, e, r)
	if len(whole.ToolCalls) != 2 || whole.ToolCallsTotal != 2 || whole.ToolCalls[0].ID == whole.ToolCalls[1].ID {
		t.Fatalf("%+v", whole)
	}
	for _, call := range whole.ToolCalls {
		if call.Name != "f" || call.Arguments != `{"unit": "C"}` {
			t.Errorf("%+v", call)
		}
	}
	s, err := e.Stream(ctx, r)
	ok(t, err)
	var all Chunk
	arguments, parts := [2]string{}, 0
	for chunk, err := s.Recv(); err == nil; chunk, err = s.Recv() {
		all.Text += chunk.Text
		for _, part := range chunk.ToolCalls {
			arguments[part.Index] += part.Arguments
			parts++
		}
	}
	if all.Text != whole.Text || arguments[0] != `{"unit": "C"}` || arguments[1] != arguments[0] || parts < 2 {
		t.Errorf("%q, %v in %d parts", all.Text, arguments, parts)
	}
	late, err := e.Stream(ctx, r)
	ok(t, err)
	ending, err := late.Wait()
	ok(t, err)
	chunk, err := late.Recv() // all at once
	ok(t, err)
	if fmt.Sprint(chunk.ToolCalls) != fmt.Sprint(whole.ToolCalls) || ending.ToolCallsTotal != 2 {
		t.Errorf("%+v", chunk)
	}
	c := answer(t, e, Request{Chat: conversation("<think>\nhm\n</think>\n\nYes", "a"), ParseOutput: true})
	if c.Reasoning != "hm" || c.Text != "Yes: a\n" {
		t.Errorf("%+v", c)
	}
}

func TestPause(t *testing.T) { // 17
	e := open(t, Options{Threads: 2, IdleRelease: time.Hour})
	ok(t, e.Pause())
	s, err := e.Stream(ctx, Request{Prompt: "17+25="})
	ok(t, err)
	_, err = e.Generate(ctx, Request{Prompt: "17+25=", Timeout: time.Millisecond})
	wants(t, err, ErrTimedOut, "")
	stats, err := e.Stats()
	ok(t, err)
	if stats.EnginePaused != 1 || stats.Queued != 1 || stats.Steps != 0 || stats.Threads != 2 {
		t.Fatalf("%+v", stats)
	}
	ok(t, e.SetThreads(1))
	wants(t, e.SetThreads(3), ErrInvalidArgument, "threads = 3")
	ok(t, e.Resume())
	if text, _ := read(t, s); text != "42" {
		t.Fatal(text)
	}
	if stats, err = e.Stats(); err != nil || stats.EnginePaused != 0 || stats.Threads != 1 {
		t.Fatalf("%+v, %v", stats, err)
	}
}

func TestReasoningIsBounded(t *testing.T) {
	e := open(t, Options{Path: "builtin:echo"})
	chat := map[string]any{
		"messages": []any{
			map[string]any{"role": "user", "content": strings.Repeat("x", 40)}, map[string]any{"role": "assistant", "content": "<think>\n"},
		},
		"continue_final_message": true, "reasoning_format": "think",
	}
	for most, want := range map[int]string{5: "user:", -1: ""} {
		c := answer(t, e, Request{Chat: chat, ParseOutput: true, IgnoreEOS: true, MaxTokens: 60, MaxReasoning: most})
		if c.Reasoning != want || c.Usage.ReasoningTokens != len(want)+len("</think>") || c.Text == "" {
			t.Errorf("%d: %+v", most, c)
		}
	}
	free := answer(t, e, Request{Chat: chat, ParseOutput: true, IgnoreEOS: true, MaxTokens: 60})
	if free.Usage.ReasoningTokens != 60 {
		t.Errorf("%+v", free)
	}
}

func TestChatJSON(t *testing.T) {
	e := open(t, Options{Path: "builtin:echo"})
	m, err := e.Model()
	ok(t, err)
	defer m.Close()
	chat := json.RawMessage(`{"messages": [{"role": "user", "content": "<a> & b"}]}`)
	text, err := m.ChatJSONText(chat)
	ok(t, err)
	tokens, err := m.ChatJSONTokens(chat)
	ok(t, err)
	same, err := m.ChatTokens([]Message{{"user", "<a> & b"}})
	ok(t, err)
	if text != "user: <a> & b\nassistant: " || fmt.Sprint(tokens) != fmt.Sprint(same) {
		t.Errorf("%q, %v", text, tokens)
	}
	_, err = e.Generate(ctx, Request{Chat: json.RawMessage(`{"messages": [{}]}`)})
	wants(t, err, ErrInvalidArgument, "messages[0].role")
	_, err = m.ChatJSONText(make(chan int))
	wants(t, err, ErrInvalidArgument, "chat")
	var unsupported *json.UnsupportedTypeError
	if !errors.As(err, &unsupported) {
		t.Error(err)
	}
	required := conversation("user", "Hi")
	function := map[string]any{"name": "f", "parameters": json.RawMessage(schema)}
	required["tools"] = []any{map[string]any{"type": "function", "function": function}}
	required["tool_choice"], required["parallel_tool_calls"] = "required", false
	required["add_generation_prompt"], required["reasoning_format"] = true, "none"
	c := answer(t, e, Request{Chat: required, ParseOutput: true, Temperature: 1, MaxTokens: 500})
	if len(c.ToolCalls) != 1 || !json.Valid([]byte(c.ToolCalls[0].Arguments)) || c.Reason != FinishStop {
		t.Errorf("%+v", c)
	}
}

func TestAdapters(t *testing.T) {
	e := open(t, Options{Path: "../../tests/golden/models/llama-llama3", ContextLength: 128, AdapterBytes: 1 << 20})
	r := Request{MaxTokens: 12, Temperature: 1, IgnoreEOS: true}
	for i := uint32(0); i < 40; i++ {
		r.PromptTokens = append(r.PromptTokens, 3+i*7%60)
	}
	tokens := func(adapter *Adapter, scale float32) string {
		t.Helper()
		r.Adapter, r.AdapterScale = adapter, scale
		return fmt.Sprint(answer(t, e, r).Tokens)
	}
	plain := tokens(nil, 0)
	folder, err := e.OpenAdapter("../../tests/golden/adapters/llama")
	ok(t, err)
	file, err := e.OpenAdapter("../../tests/golden/adapters/llama.gguf")
	ok(t, err)
	adapted := tokens(folder, 0)
	one, err := folder.Fingerprint()
	ok(t, err)
	again, err := e.OpenAdapter("../../tests/golden/adapters/llama")
	ok(t, err)
	two, err := again.Fingerprint()
	ok(t, err)
	ok(t, again.Close())
	if _, err = again.Fingerprint(); one == 0 || one != two || !errors.Is(err, ErrShutdown) {
		t.Errorf("fingerprints %x and %x, %v", one, two, err)
	}
	if adapted == plain || tokens(file, 1) != adapted || tokens(file, -2) == adapted || tokens(nil, 0) != plain {
		t.Error("the adapters make no difference, or another one")
	}
	r.Adapter = folder
	s, err := e.Stream(ctx, r)
	ok(t, err)
	ok(t, folder.Close())
	ok(t, folder.Close())
	_, err = s.Wait() // it has kept it
	ok(t, err)
	_, err = e.Generate(ctx, r)
	wants(t, err, ErrShutdown, "Close")
	_, err = e.OpenAdapter("/nowhere")
	wants(t, err, ErrIO, "/nowhere")
	_, err = e.OpenAdapter("../../tests/golden/adapters/qwen3")
	wants(t, err, ErrBadModel, "attn_q")
	before, err := e.Stats()
	ok(t, err)
	file = nil // forgotten
	for now := before; now.MemoryUsedBytes >= before.MemoryUsedBytes; now, err = e.Stats() {
		ok(t, err)
		runtime.GC()
	}
}

func TestScore(t *testing.T) {
	e := open(t, Options{})
	for _, p := range prompts(t, "sum")[:4] {
		scores, err := e.Score(ctx, Request{Prompt: p.Prompt}, []string{p.Answer, "1" + p.Answer, "the ball"})
		ok(t, err)
		if len(scores) != 3 || !scores[0].Greedy || scores[1].Greedy || scores[0].Logprob < -0.5 ||
			scores[0].Logprob <= scores[1].Logprob || scores[0].Logprob <= scores[2].Logprob {
			t.Errorf("%s: %+v", p.Prompt, scores)
		}
	}
	c := answer(t, e, Request{Prompt: story, MaxTokens: 8, Logprobs: true})
	scores, err := e.Score(ctx, Request{Prompt: story}, []string{c.Text})
	ok(t, err)
	sum := 0.0
	for _, entry := range c.Logprobs {
		sum += float64(entry[0].Logprob)
	}
	if scores[0].Tokens != 8 || !scores[0].Greedy || math.Abs(scores[0].Logprob-sum) > 1e-4 {
		t.Errorf("%+v, generated with %f", scores[0], sum)
	}
	// The tokens are the bytes and an end. The very first one has no log probability.
	echo := open(t, Options{Path: "builtin:echo"})
	scores, err = echo.Score(ctx, Request{LogprobTokens: []uint32{5}}, []string{"abc"})
	ok(t, err)
	if scores[0].Tokens != 3 || !(scores[0].Logprob < 0) {
		t.Errorf("%+v", scores[0])
	}
	_, err = e.Score(ctx, Request{Prompt: story}, []string{" there", ""})
	wants(t, err, ErrInvalidArgument, "logprobs_from")
}

func TestSpeculation(t *testing.T) {
	e := open(t, Options{Path: "builtin:echo", Speculation: SpeculationLookup, DraftTokens: 1})
	const prompt = "one two three one two three one two three one two three " // which the answer repeats
	drafted, plain := answer(t, e, Request{Prompt: prompt}), answer(t, e, Request{Prompt: prompt, Speculation: SpeculationOff})
	if drafted.Text != plain.Text || plain.Usage.DraftedTokens != 0 || drafted.Usage.AcceptedTokens == 0 {
		t.Errorf("%+v, without %+v", drafted, plain)
	}
	stats, err := e.Stats()
	ok(t, err)
	if stats.DraftedTokens != uint64(drafted.Usage.DraftedTokens) || stats.AcceptedTokens != uint64(drafted.Usage.AcceptedTokens) {
		t.Errorf("%+v", stats)
	}
	_, err = NewEngine(Options{Path: "builtin:echo", DraftTokens: 16})
	wants(t, err, ErrInvalidArgument, "draft_tokens")
}

func TestDraftModel(t *testing.T) {
	model, err := OpenModel(ctx, ModelOptions{})
	ok(t, err)
	e := open(t, Options{Model: model, DraftModel: model}) // it drafts for itself
	ok(t, model.Close())
	request := Request{Prompt: story, MaxTokens: 40, Temperature: 0.8, Speculation: SpeculationDraft}
	drafted := answer(t, e, request)
	request.Speculation = SpeculationOff
	plain := answer(t, e, request)
	if drafted.Text != plain.Text || drafted.Usage.AcceptedTokens != drafted.Usage.DraftedTokens {
		t.Errorf("%+v, without %+v", drafted, plain)
	}
	_, err = NewEngine(Options{DraftModel: model})
	wants(t, err, ErrShutdown, "")
	_, err = NewEngine(Options{Speculation: SpeculationDraft})
	wants(t, err, ErrInvalidArgument, "draft_model")
}

func TestLogitsHook(t *testing.T) {
	e := open(t, Options{})
	var all sync.WaitGroup
	for token := uint32(20); token < 36; token++ {
		all.Add(1)
		go func(token uint32) {
			defer all.Done()
			var kept []Logits
			force := func(l Logits) error {
				l.Logits[token+uint32(len(l.OutputTokens))] = 1e6
				kept = append(kept, l)
				return nil
			}
			c, err := e.Generate(ctx, Request{Prompt: story, MaxTokens: 3, IgnoreEOS: true, OnLogits: force})
			if err != nil || fmt.Sprint(c.Tokens) != fmt.Sprint([]uint32{token, token + 1, token + 2}) {
				t.Errorf("%+v, %v", c, err)
			}
			if len(kept) != 3 || fmt.Sprint(kept[2].OutputTokens) != fmt.Sprint(c.Tokens[:2]) || len(kept[0].PromptTokens) == 0 {
				t.Errorf("%d rows", len(kept))
			}
		}(token)
	}
	all.Wait()
	third := errors.New("the third token")
	c, err := e.Generate(ctx, Request{Prompt: story, OnLogits: func(l Logits) error {
		if len(l.OutputTokens) == 2 {
			return third
		}
		return nil
	}})
	if !errors.Is(err, third) || !errors.Is(err, ErrCancelled) || c.Reason != FinishFailed || len(c.Tokens) != 2 {
		t.Errorf("%+v, %v", c, err)
	}
	if c := answer(t, e, Request{Prompt: "17+25="}); c.Text != "42" {
		t.Errorf("%q", c.Text)
	}
	_, err = e.Generate(ctx, Request{OnLogits: func(Logits) error { return nil }})
	wants(t, err, ErrInvalidArgument, "prompt")
}
