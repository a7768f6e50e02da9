package bnengine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// The numbers refer to the list in bindings/README.md.

var ctx = context.Background()

// slow is a model whose requests do not end by themselves while a test runs.
const slow = "builtin:echo?us_per_token=2000"

var endless = Request{Prompt: "wait", MaxTokens: AllTokens, IgnoreEOS: true}

func open(t testing.TB, options Options) *Engine {
	t.Helper()
	e, err := NewEngine(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func wants(t *testing.T, err error, code Code, part string) {
	t.Helper()
	var failed *Error
	if !errors.As(err, &failed) || !errors.Is(err, code) || failed.Code != code || !strings.Contains(failed.Message, part) {
		t.Fatalf("got %v, not %s with %q", err, code.Name(), part)
	}
}

func read(t testing.TB, s *Stream) (text string, tokens []uint32) {
	t.Helper()
	for {
		chunk, err := s.Recv()
		if err == io.EOF {
			return text, tokens
		}
		ok(t, err)
		text, tokens = text+chunk.Text, append(tokens, chunk.Tokens...)
	}
}

func TestVersion(t *testing.T) { // 1
	if Version() != os.Getenv("BN_VERSION") {
		t.Fatalf("the library is %s, not %s", Version(), os.Getenv("BN_VERSION"))
	}
	ok(t, checkABI()) // every New and Open does this
}

type golden struct {
	Kind, Prompt, Answer, Text string
	Tokens                     []uint32
}

func prompts(t *testing.T, kind string) (list []golden) {
	data, err := os.ReadFile("../../tests/golden/demo_prompts.json")
	ok(t, err)
	var all []golden
	ok(t, json.Unmarshal(data, &all))
	for _, p := range all {
		if p.Kind == kind {
			list = append(list, p)
		}
	}
	if len(list) == 0 {
		t.Fatal("no prompts of kind " + kind)
	}
	return list
}

func TestGolden(t *testing.T) { // 2
	e := open(t, Options{})
	for _, p := range append(prompts(t, "sum")[:8], prompts(t, "recall")[:8]...) {
		c, err := e.Generate(ctx, Request{Prompt: p.Prompt, MaxTokens: 8})
		ok(t, err)
		if c.Text != p.Answer || c.Reason != FinishStop || c.StopIndex != -1 {
			t.Errorf("%s: %q (%s), not %q", p.Prompt, c.Text, c.Reason, p.Answer)
		}
	}
	for _, p := range prompts(t, "story")[:2] {
		s, err := e.Stream(ctx, Request{Prompt: p.Prompt, MaxTokens: len(p.Tokens)})
		ok(t, err)
		text, tokens := read(t, s)
		ending, err := s.Wait()
		ok(t, err)
		if text != p.Text || fmt.Sprint(tokens) != fmt.Sprint(p.Tokens) || ending.Usage.GeneratedTokens != len(p.Tokens) {
			t.Errorf("%s: %q, not %q", p.Prompt, text, p.Text)
		}
	}
}

func TestConcurrentStreams(t *testing.T) { // 3
	e := open(t, Options{MaxBatchSize: 8})
	sample := func(seed int) Request {
		return Request{Prompt: "One day", MaxTokens: 24, Temperature: 0.9, TopK: 40, Seed: uint64(seed)}
	}
	texts := make([]string, 32)
	var all sync.WaitGroup
	for i := range texts {
		all.Add(1)
		go func(i int) {
			defer all.Done()
			if s, err := e.Stream(ctx, sample(i)); err == nil {
				texts[i], _ = read(t, s)
			}
		}(i)
	}
	all.Wait()
	different := map[string]bool{}
	for i, text := range texts {
		alone, err := e.Generate(ctx, sample(i))
		ok(t, err)
		if alone.Text != text || text == "" {
			t.Errorf("seed %d: %q in a batch, %q alone", i, text, alone.Text)
		}
		different[text] = true
	}
	if len(different) < 16 {
		t.Errorf("32 seeds gave %d texts", len(different))
	}
}

func TestCancel(t *testing.T) { // 4
	e := open(t, Options{Path: slow, QueueCapacity: 2, MaxBatchSize: 2})
	other, err := e.Stream(ctx, Request{Prompt: "goes on to its end"})
	ok(t, err)
	cancelled, cancel := context.WithCancel(ctx)
	s, err := e.Stream(cancelled, endless)
	ok(t, err)
	_, err = s.Recv()
	ok(t, err)
	cancel()
	ending, err := s.Wait()
	wants(t, err, ErrCancelled, "")
	if !errors.Is(err, context.Canceled) || ending.Reason != FinishCancelled || ending.Usage.GeneratedTokens == 0 {
		t.Fatalf("%v, %+v", err, ending)
	}
	last, err := e.Stream(ctx, endless) // in its place
	ok(t, err)
	last.Close()
	last.Close()
	for err == nil {
		_, err = last.Recv()
	}
	wants(t, err, ErrCancelled, "")
	if text, _ := read(t, other); text != "goes on to its end" {
		t.Fatalf("the other request gave %q", text)
	}
	_, err = e.Generate(cancelled, Request{Prompt: "x"})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
}

func TestErrors(t *testing.T) { // 5
	_, err := NewEngine(Options{Path: "/nowhere/model.gguf"})
	wants(t, err, ErrIO, "/nowhere/model.gguf")
	_, err = OpenModel(ctx, ModelOptions{Path: "/nowhere/model.gguf"})
	wants(t, err, ErrIO, "/nowhere/model.gguf")
	e := open(t, Options{Path: slow, QueueCapacity: 1})
	_, err = e.Generate(ctx, Request{Prompt: "x", Temperature: -1})
	wants(t, err, ErrInvalidArgument, "temperature")
	_, err = e.Generate(ctx, Request{})
	wants(t, err, ErrInvalidArgument, "prompt")
	_, err = e.Stream(ctx, endless)
	ok(t, err)
	_, err = e.Stream(ctx, endless)
	wants(t, err, ErrQueueFull, "1")
}

func TestTimeout(t *testing.T) {
	e := open(t, Options{Path: slow})
	request := endless
	request.Timeout = 1
	c, err := e.Generate(ctx, request)
	wants(t, err, ErrTimedOut, "")
	if c.Reason != FinishTimedOut {
		t.Fatal(c.Reason)
	}
	soon, stop := context.WithTimeout(ctx, 1)
	defer stop()
	if _, err = e.Generate(soon, endless); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
}

func TestChat(t *testing.T) { // 6
	e := open(t, Options{Path: "builtin:echo"})
	messages := []Message{{"system", "Echo."}, {"user", "hello"}}
	c, err := e.Generate(ctx, Request{Messages: messages})
	ok(t, err)
	const want = "system: Echo.\nuser: hello\nassistant: "
	if c.Text != want {
		t.Fatalf("%q", c.Text)
	}
	m, err := e.Model()
	ok(t, err)
	defer m.Close()
	tokens, err := m.ChatTokens(messages)
	ok(t, err)
	shown, err := m.ChatText(messages)
	ok(t, err)
	again, err := e.Generate(ctx, Request{PromptTokens: tokens})
	ok(t, err)
	text, err := m.Detokenize(tokens)
	ok(t, err)
	if again.Text != want || text != want || shown != want {
		t.Fatalf("%q, %q, %q", again.Text, text, shown)
	}
	sum, err := open(t, Options{}).Generate(ctx, Request{Messages: []Message{{Role: "user", Content: "17+25="}}})
	ok(t, err)
	if sum.Text != "42" {
		t.Fatalf("%q", sum.Text)
	}
}

func TestEmbeddings(t *testing.T) { // 7
	e := open(t, Options{})
	m, err := e.Model()
	ok(t, err)
	defer m.Close()
	info, err := m.Info()
	ok(t, err)
	one, err := e.Embed(ctx, Request{Prompt: "a red ball"})
	ok(t, err)
	two, err := e.Embed(ctx, Request{Prompt: "a red ball"})
	ok(t, err)
	other, err := e.Embed(ctx, Request{Prompt: "12+30="})
	ok(t, err)
	var square, product float64
	for i := range one {
		square += float64(one[i] * one[i])
		product += float64(one[i] * other[i])
	}
	if len(one) != info.EmbeddingSize || fmt.Sprint(one) != fmt.Sprint(two) || math.Abs(square-1) > 1e-3 || product > 0.999 {
		t.Fatalf("%d of %d elements, length %f, product %f", len(one), info.EmbeddingSize, square, product)
	}
	for _, r := range []Request{{Pooling: PoolingFirst}, {Normalization: NormalizationNone}} {
		r.Prompt = "a red ball"
		vector, err := e.Embed(ctx, r)
		ok(t, err)
		if fmt.Sprint(vector) == fmt.Sprint(one) {
			t.Fatalf("no difference with %+v", r)
		}
	}
	_, err = e.Embed(ctx, Request{Prompt: "x", Temperature: 1})
	wants(t, err, ErrInvalidArgument, "temperature")
}

func TestRerank(t *testing.T) { // 16
	const folder = "../../tests/golden/models/bert-reranker"
	data, err := os.ReadFile(folder + "/texts.json")
	ok(t, err)
	var golden struct {
		Pairs []struct {
			Texts [2]string
			Score float64
		}
	}
	ok(t, json.Unmarshal(data, &golden))
	e := open(t, Options{Path: folder})
	m, err := e.Model()
	ok(t, err)
	defer m.Close()
	info, err := m.Info()
	ok(t, err)
	for _, pair := range golden.Pairs {
		if pair.Texts[0] == "" {
			continue
		}
		scores, err := e.Rerank(ctx, Request{Prompt: pair.Texts[0]}, []string{pair.Texts[1], "", pair.Texts[1]})
		ok(t, err)
		if len(scores) != 3 || scores[0] != scores[2] || math.Abs(float64(scores[0])-pair.Score) > 1e-3 || !info.ScoresPairs {
			t.Errorf("%v in place of %f", scores, pair.Score)
		}
	}
	_, err = open(t, Options{}).Rerank(ctx, Request{Prompt: "x"}, []string{"y"})
	wants(t, err, ErrUnsupported, "no head")
}

func TestDecide(t *testing.T) { // 18
	e := open(t, Options{})
	questions := []Question{
		{Kind: YesOrNo, Text: "Was it small?", Options: []string{" yes", " no"}},
		{Kind: Level, Text: "It counted to", Options: []string{" 1", " 2", " 3"}},
		{Text: "It met", Options: []string{" a dog", " a cat"}},
	}
	const story = "Once upon a time there was a small machine."
	answers, err := e.Decide(ctx, Request{Prompt: story}, questions)
	ok(t, err)
	for i, answer := range answers {
		var sum float64
		for _, option := range answer.Options {
			sum += option.Probability
			if math.Abs(math.Exp(option.Logprob-answer.Options[0].Logprob)-option.Probability/answer.Options[0].Probability) > 1e-6 {
				t.Errorf("%+v", answer)
			}
		}
		if len(answer.Options) != len(questions[i].Options) || math.Abs(sum-1) > 1e-9 || answer.Options[answer.Best].Probability < 1/float64(len(answer.Options)) {
			t.Errorf("%+v", answer)
		}
	}
	if len(answers) != 3 || answers[0].Value != answers[0].Options[0].Probability || answers[1].Value > 2 {
		t.Errorf("%+v", answers)
	}
	_, err = e.Decide(ctx, Request{Prompt: story}, []Question{{Name: "empty"}})
	wants(t, err, ErrInvalidArgument, "empty")
}

func TestPictures(t *testing.T) { // 19
	e := open(t, Options{})
	model, err := e.Model()
	ok(t, err)
	defer model.Close()
	if info, err := model.Info(); err != nil || info.Sees {
		t.Errorf("it sees: %v, %v", info.Sees, err)
	}
	file := filepath.Join(t.TempDir(), "a.png")
	if _, err := ReadPicture(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte("\x89PNG"), 0o600); err != nil {
		t.Fatal(err)
	}
	picture, err := ReadPicture(file)
	if err != nil || string(picture.Data) != "\x89PNG" {
		t.Errorf("read %q, %v", picture.Data, err)
	}
	whole := Picture{Data: make([]byte, 6), Width: 2, Height: 1}
	for _, c := range []struct {
		second Picture
		code   Code
		words  string
	}{
		{picture, ErrUnsupported, "sees none"},
		{Picture{}, ErrInvalidArgument, "pictures[1].data is empty"},
		{Picture{Data: make([]byte, 5), Width: 2, Height: 1}, ErrInvalidArgument, "pictures[1]: 5 bytes for 2 x 1 pixels"},
		{Picture{Data: make([]byte, 6), Width: -1, Height: 1}, ErrInvalidArgument, "pictures[1]: 6 bytes for"},
	} {
		_, err := e.Generate(context.Background(), Request{Prompt: "a", Pictures: []Picture{whole, c.second}})
		if !errors.Is(err, c.code) || !strings.Contains(err.Error(), c.words) {
			t.Errorf("got %v, want %q", err, c.words)
		}
	}
	if _, err := e.PicturePositions(whole); !errors.Is(err, ErrUnsupported) {
		t.Errorf("positions: %v", err)
	}
}

func TestClose(t *testing.T) { // 8
	e := open(t, Options{Path: slow, MaxBatchSize: 4})
	var all sync.WaitGroup
	for i := 0; i < 16; i++ {
		s, err := e.Stream(ctx, endless)
		ok(t, err)
		all.Add(1)
		go func() {
			defer all.Done()
			ending, err := s.Wait()
			if !errors.Is(err, ErrCancelled) || ending.Reason != FinishCancelled {
				t.Errorf("%v, %v", err, ending.Reason)
			}
		}()
	}
	m, err := e.Model()
	ok(t, err)
	for i := 0; i < 2; i++ { // at once, and again below
		all.Add(1)
		go func() {
			defer all.Done()
			ok(t, e.Close())
		}()
	}
	all.Wait()
	ok(t, e.Close())
	_, err = e.Generate(ctx, endless)
	wants(t, err, ErrShutdown, "Close")
	_, err = e.Stats()
	wants(t, err, ErrShutdown, "Close")
	_, err = e.SaveSession("s")
	wants(t, err, ErrShutdown, "Close")
	_, err = m.Tokenize("the model lives on", true)
	ok(t, err)
	ok(t, m.Close())
	ok(t, m.Close())
	_, err = m.Tokenize("x", true)
	wants(t, err, ErrShutdown, "Close")
	_, err = NewEngine(Options{Model: m})
	wants(t, err, ErrShutdown, "Close")
}

func TestShutdown(t *testing.T) {
	e := open(t, Options{Path: "builtin:echo"})
	s, err := e.Stream(ctx, Request{Prompt: "is finished before the engine"})
	ok(t, err)
	ok(t, e.Shutdown(ctx))
	if text, _ := read(t, s); text != "is finished before the engine" {
		t.Fatalf("%q", text)
	}
	e = open(t, Options{Path: slow})
	s, err = e.Stream(ctx, endless)
	ok(t, err)
	over, cancel := context.WithCancel(ctx)
	cancel()
	if err := e.Shutdown(over); err != context.Canceled {
		t.Fatal(err)
	}
	_, err = s.Wait()
	wants(t, err, ErrCancelled, "")
}

func TestStats(t *testing.T) { // 9
	e := open(t, Options{Path: "builtin:echo", QueueCapacity: 7})
	c, err := e.Generate(ctx, Request{Prompt: "count this"})
	ok(t, err)
	stats, err := e.Stats()
	ok(t, err)
	if stats.Accepted != 1 || stats.CompletedStop != 1 || stats.Running+stats.Queued+stats.Unreleased != 0 || stats.QueueCapacity != 7 ||
		stats.GeneratedTokens != uint64(c.Usage.GeneratedTokens) || stats.EndToEnd.Count != 1 || stats.EndToEnd.P50 == 0 {
		t.Fatalf("%+v", stats)
	}
	metrics, err := e.Metrics()
	ok(t, err)
	if !strings.Contains(metrics, "bn_") || !strings.Contains(metrics, "\n") {
		t.Fatal(metrics)
	}
	report, err := e.Report()
	ok(t, err)
	state, err := e.State()
	ok(t, err)
	if report == "" || state != StateRunning {
		t.Fatal(report, state)
	}
	ok(t, e.Close())
	_, err = e.State()
	wants(t, err, ErrShutdown, "Close")
	named := open(t, Options{Path: "builtin:echo", ModelName: "parrot"})
	if metrics, err = named.Metrics(); err != nil || !strings.Contains(metrics, `"parrot"`) {
		t.Fatal(metrics, err)
	}
}

// A request that waits for the only place is overtaken by an urgent one, unless the order is that of arrival.
func TestPriorityAgeing(t *testing.T) {
	for _, ageing := range []time.Duration{0, -1} {
		e := open(t, Options{Path: slow, MaxBatchSize: 1, PriorityAgeing: ageing})
		running, waits := endless, endless
		running.Priority = 127
		first, err := e.Stream(ctx, running)
		ok(t, err)
		_, err = first.Recv()
		ok(t, err)
		second, err := e.Stream(ctx, waits)
		ok(t, err)
		urgent, err := e.Stream(ctx, Request{Prompt: "is urgent", Priority: 127})
		ok(t, err)
		first.Close()
		if ageing == 0 {
			read(t, urgent) // to its end, which the second has not
			continue
		}
		_, err = second.Recv()
		ok(t, err)
		urgent.Close()
		if ending, _ := urgent.Wait(); ending.Usage.GeneratedTokens != 0 {
			t.Fatalf("%+v", ending)
		}
	}
}

func TestKVEvents(t *testing.T) {
	e := open(t, Options{KVEvents: 16, KVBlockSize: 16})
	_, err := e.Generate(ctx, Request{Prompt: strings.Repeat("One day ", 20)})
	ok(t, err)
	events, err := e.KVEvents()
	ok(t, err)
	if len(events) < 2 || events[0].Kind != KVStored || events[0].ParentHash != 0 || events[1].ParentHash != events[0].Hash {
		t.Fatal(events)
	}
	ok(t, e.ClearCache())
	events, err = e.KVEvents()
	ok(t, err)
	if len(events) != 1 || events[0].Kind != KVCleared {
		t.Fatal(events)
	}
	_, err = open(t, Options{Path: "builtin:echo"}).KVEvents()
	wants(t, err, ErrWrongMode, "kv_events_capacity")
}

func TestModelInfo(t *testing.T) {
	m, err := OpenModel(ctx, ModelOptions{})
	ok(t, err)
	defer m.Close()
	info, err := m.Info()
	ok(t, err)
	if info.Heads == 0 || info.KVHeads == 0 || info.HeadDim == 0 || info.FFNSize == 0 || info.Pooling == PoolingModel {
		t.Fatalf("%+v", info)
	}
	if info.Recommended != (Sampling{}) {
		t.Fatalf("%+v", info.Recommended)
	}
	tokens, err := m.Tokenize("a", false)
	ok(t, err)
	var bytes []byte
	for _, token := range tokens {
		b, err := m.TokenBytes(token)
		ok(t, err)
		bytes = append(bytes, b...)
	}
	if !strings.HasSuffix(string(bytes), "a") {
		t.Fatalf("%q", bytes)
	}
	_, err = m.TokenBytes(math.MaxUint32)
	wants(t, err, ErrInvalidArgument, "")
}

func TestRecommendedSampling(t *testing.T) {
	const from = "../../tests/golden/models/llama-llama3"
	folder := t.TempDir()
	files, err := os.ReadDir(from)
	ok(t, err)
	for _, file := range files {
		data, err := os.ReadFile(from + "/" + file.Name())
		ok(t, err)
		ok(t, os.WriteFile(folder+"/"+file.Name(), data, 0o600))
	}
	ok(t, os.WriteFile(folder+"/generation_config.json", []byte(`{"do_sample": true, "temperature": 0.5, "top_k": 20}`), 0o600))
	m, err := OpenModel(ctx, ModelOptions{Path: folder})
	ok(t, err)
	defer m.Close()
	info, err := m.Info()
	ok(t, err)
	got := info.Recommended
	if got.Temperature == nil || *got.Temperature != 0.5 || got.TopK == nil || *got.TopK != 20 || got.TopP != nil || got.MinP != nil {
		t.Fatalf("%+v", got)
	}
}

func TestSharedModelAndLog(t *testing.T) {
	var mu sync.Mutex
	lines := 0
	log := func(LogLevel, string) { mu.Lock(); lines++; mu.Unlock() }
	m, err := OpenModel(ctx, ModelOptions{Log: log, LogLevel: LogDebug})
	ok(t, err)
	one, two := open(t, Options{Model: m, Log: log, LogLevel: LogDebug}), open(t, Options{Model: m})
	ok(t, m.Close())
	for _, e := range []*Engine{one, two} {
		c, err := e.Generate(ctx, Request{Prompt: "17+25=", MaxTokens: 8, Logprobs: true, TopLogprobs: 2})
		ok(t, err)
		if c.Text != "42" || len(c.Logprobs) != len(c.Tokens) || len(c.Logprobs[0]) != 3 || c.Logprobs[0][0].Token != c.Tokens[0] {
			t.Fatalf("%+v", c)
		}
	}
	ok(t, one.Close())
	if lines == 0 {
		t.Fatal("nothing was logged")
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	_, err = OpenModel(stopped, ModelOptions{})
	if !errors.Is(err, context.Canceled) || !errors.Is(err, ErrCancelled) {
		t.Fatal(err)
	}
}

func TestSession(t *testing.T) {
	e := open(t, Options{})
	_, err := e.Generate(ctx, Request{Prompt: "One day", Session: "s"})
	ok(t, err)
	data, err := e.SaveSession("s")
	ok(t, err)
	ok(t, e.FreeSession("s"))
	wants(t, e.FreeSession("s"), ErrNotFound, "")
	ok(t, e.RestoreSession("s", data))
	data[len(data)/2] ^= 1
	wants(t, e.RestoreSession("s", data), ErrInvalidArgument, "")
	ok(t, e.ClearCache())
}

func TestStreamsNeedNoThreads(t *testing.T) {
	e := open(t, Options{Path: slow, MaxBatchSize: 256})
	threads := func() int {
		list, err := os.ReadDir("/proc/self/task")
		ok(t, err)
		return len(list)
	}
	cancellable, cancel := context.WithCancel(ctx)
	defer cancel()
	s, err := e.Stream(cancellable, endless)
	ok(t, err)
	_, err = s.Recv()
	ok(t, err)
	goroutines, before := runtime.NumGoroutine(), threads()
	streams := make([]*Stream, 200)
	for i := range streams {
		streams[i], err = e.Stream(cancellable, endless)
		ok(t, err)
	}
	for _, s := range streams {
		_, err := s.Recv()
		ok(t, err)
	}
	if n := runtime.NumGoroutine() - goroutines; !goroutinePerContext && n > 4 {
		t.Errorf("%d goroutines for 200 streams", n)
	}
	if n := threads() - before; n > 2*runtime.GOMAXPROCS(0)+4 {
		t.Errorf("%d threads for 200 streams", n)
	}
}

func TestForgottenEngineIsFreed(t *testing.T) {
	e, err := NewEngine(Options{Path: "builtin:echo"})
	ok(t, err)
	over := e.core.over
	_, err = e.Generate(ctx, Request{Prompt: "x"})
	ok(t, err)
	runtime.KeepAlive(e)
	e = nil
	for {
		runtime.GC()
		select {
		case <-over:
			return
		default:
		}
	}
}
