package bnengine

import (
	"context"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"
	"unsafe"
)

// KVType is the type in which keys and values are stored.
type KVType uint32

// The types of keys and values.
const (
	KVF16  KVType = BN_KV_TYPE_F16
	KVF32  KVType = BN_KV_TYPE_F32
	KVInt8 KVType = BN_KV_TYPE_INT8
	KVInt4 KVType = BN_KV_TYPE_INT4
)

// Instructions is the instruction set of the kernels. Results are the same with any.
type Instructions uint32

// The instruction sets. One that the machine lacks is refused.
const (
	Scalar     Instructions = BN_INSTRUCTIONS_SCALAR
	AVX2       Instructions = BN_INSTRUCTIONS_AVX2
	AVXVNNI    Instructions = BN_INSTRUCTIONS_AVX_VNNI
	AVX512VNNI Instructions = BN_INSTRUCTIONS_AVX512_VNNI
	AVX512VBMI Instructions = BN_INSTRUCTIONS_AVX512_VBMI
	AMX        Instructions = BN_INSTRUCTIONS_AMX
	NEON       Instructions = BN_INSTRUCTIONS_NEON
	NEONI8MM   Instructions = BN_INSTRUCTIONS_NEON_I8MM
)

// Engine runs one model for any number of requests.
type Engine struct{ core *core }

// core is the state that the goroutine of an engine needs. It does not refer to the Engine, so that a forgotten
// one is collected.
type core struct {
	ptr   bn_engine
	hooks *hooks
	over  chan struct{} // closed when no event will come any more

	mu      sync.Mutex
	streams map[uint64]*Stream // those that have not ended, by user_data
	last    uint64

	life   sync.RWMutex // for writing: no call is under way
	closed bool
}

// NewEngine makes an engine. Close it after use.
func NewEngine(options Options) (*Engine, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	c := &core{over: make(chan struct{}), streams: map[uint64]*Stream{}, hooks: newHooks(nil, options.Log)}
	if err := c.create(&options); err != nil {
		c.hooks.free()
		return nil, err
	}
	if err := c.start(); err != nil {
		close(c.over)
		c.close()
		return nil, err
	}
	e := &Engine{core: c}
	runtime.SetFinalizer(e, func(e *Engine) { go e.core.close() }) // in case Close is not called
	return e, nil
}

func (c *core) create(o *Options) error {
	var memory arena
	defer memory.free()
	var config bn_engine_config
	bn_engine_config_init(&config, sizeof_bn_engine_config)
	o.set(&config, &memory)
	draft, err := o.DraftModel.handle()
	if err != nil {
		return err
	}
	defer runtime.KeepAlive(o.DraftModel)
	config.draft_model = draft
	config.log, config.log_context = c.hooks.callback(), c.hooks.handle
	create := func(model bn_model, failure *bn_error) bn_status {
		config.model = model
		var ptr bn_engine // by itself, as cgo looks at all that an argument is a part of
		status := bn_engine_create(&config, &ptr, failure)
		c.ptr = ptr
		return status
	}
	if o.Model != nil {
		return o.Model.use(create)
	}
	return try(func(failure *bn_error) bn_status { return create(0, failure) })
}

// start lets a goroutine wait for the engine in the runtime's poller, through a duplicate of its descriptor.
func (c *core) start() error {
	syscall.ForkLock.RLock()
	fd, err := syscall.Dup(int(bn_engine_wait_fd(c.ptr, nil)))
	if err == nil {
		syscall.CloseOnExec(fd)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return os.NewSyscallError("dup", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil { // it is already; this tells os.NewFile
		return os.NewSyscallError("fcntl", err)
	}
	file := os.NewFile(uintptr(fd), "bn_engine")
	conn, err := file.SyscallConn()
	if err != nil {
		return err
	}
	go func() {
		defer close(c.over)
		defer file.Close()
		events := (*[room]bn_event)(calloc(room, sizeof_bn_event))
		defer free(unsafe.Pointer(events))
		// The function is called at first and after each edge, until it returns true.
		_ = conn.Read(func(uintptr) bool { return !c.poll(events) })
	}()
	return nil
}

const room = 64

// poll takes waiting events. False when none will ever come.
func (c *core) poll(events *[room]bn_event) bool {
	for n := uintptr(room); n == room; {
		switch status := bn_poll(c.ptr, BN_ANY, &events[0], sizeof_bn_event, room, 0, &n, nil); status {
		case BN_OK:
		case BN_ERR_OUT_OF_MEMORY, BN_ERR_MEMORY_LIMIT: // there may be some later
			time.Sleep(time.Millisecond)
			n = room
			continue
		default: // the engine has drained or died: every request has had its last event
			return false
		}
		for i := range events[:n] {
			c.deliver(&events[i])
		}
		bn_events_free(&events[0], sizeof_bn_event, n) // those of freed requests are skipped
	}
	return true
}

// deliver hands an event to its stream. Goroutines that wait for the end find the request's place free.
func (c *core) deliver(event *bn_event) {
	last := event.kind == BN_EVENT_COMPLETED
	c.mu.Lock()
	s := c.streams[event.user_data]
	if last {
		delete(c.streams, event.user_data)
	}
	c.mu.Unlock()
	s.add(event)
	if last {
		bn_request_free(c.ptr, event.request, nil)
		s.finish()
	}
}

// close cancels every request, waits for the last event, and frees the engine.
func (c *core) close() {
	bn_engine_shutdown(c.ptr, BN_SHUTDOWN_CANCEL, nil) // of one that is freed: refused
	<-c.over
	c.life.Lock()
	defer c.life.Unlock()
	if !c.closed {
		c.closed = true
		bn_engine_free(c.ptr)
		c.hooks.free()
	}
}

// Close cancels every request and frees the engine when they have ended. It may be called again.
func (e *Engine) Close() error {
	e.core.close()
	runtime.SetFinalizer(e, nil)
	return nil
}

// Shutdown accepts no more requests and finishes those that were accepted, or cancels them when ctx ends. Then it
// closes the engine, and returns the error of ctx if that ended it.
func (e *Engine) Shutdown(ctx context.Context) error {
	defer e.Close()
	bn_engine_shutdown(e.core.ptr, BN_SHUTDOWN_DRAIN, nil)
	select {
	case <-e.core.over:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Pause waits for the running step. No other begins until Resume or the end of the engine. Requests may be submitted,
// wait and end meanwhile.
func (e *Engine) Pause() error {
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status { return bn_engine_pause(ptr, failure) })
}

// Resume ends a pause. Requests go on where they were.
func (e *Engine) Resume() error {
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status { return bn_engine_resume(ptr, failure) })
}

// SetThreads computes on n threads from the next step on: 1 to Options.Threads, or 0 for all of them.
func (e *Engine) SetThreads(n int) error {
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_engine_set_threads(ptr, count(n), failure)
	})
}

// use makes a call with the engine, which stays alive meanwhile.
func (e *Engine) use(call func(ptr bn_engine, failure *bn_error) bn_status) error {
	e.core.life.RLock()
	defer e.core.life.RUnlock()
	defer runtime.KeepAlive(e)
	if e.core.closed {
		return errClosed
	}
	return try(func(failure *bn_error) bn_status { return call(e.core.ptr, failure) })
}

// Stream submits a request and returns its output as it comes. It never waits for the model.
func (e *Engine) Stream(ctx context.Context, r Request) (*Stream, error) {
	return e.submit(ctx, &r, BN_TASK_GENERATE, 0)
}

// Generate submits a request and waits for the whole answer. If the request was cancelled, timed out or failed,
// the completion has the output so far, and the error says why.
func (e *Engine) Generate(ctx context.Context, r Request) (*Completion, error) {
	s, err := e.submit(ctx, &r, BN_TASK_GENERATE, BN_REQUEST_NO_STREAM)
	if err != nil {
		return nil, err
	}
	ending, err := s.Wait()
	chunk, _ := s.take()
	return &Completion{chunk, ending}, err
}

// Embed returns the embedding of the request's prompt, a vector of length 1 unless its Normalization or the model's
// files say otherwise.
func (e *Engine) Embed(ctx context.Context, r Request) ([]float32, error) {
	s, err := e.submit(ctx, &r, BN_TASK_EMBED, 0)
	if err != nil {
		return nil, err
	}
	ending, err := s.Wait()
	return ending.vector, err
}

func (e *Engine) submit(ctx context.Context, r *Request, task, flags uint32) (*Stream, error) {
	if err := ctx.Err(); err != nil {
		return nil, &Error{Code: ErrCancelled, Message: "not submitted: " + err.Error(), cause: err}
	}
	var memory arena
	defer memory.free()
	params, err := r.params(&memory)
	if err != nil {
		return nil, err
	}
	s := &Stream{engine: e, ctx: ctx, wake: make(chan struct{}, 1), done: make(chan struct{})}
	if r.OnLogits != nil {
		s.hook = newLogitsHook(r.OnLogits)
		s.hook.set(&params)
	}
	c := e.core
	c.mu.Lock()
	c.last++
	s.key = c.last
	c.streams[s.key] = s // before its first event
	c.mu.Unlock()
	if task != BN_TASK_GENERATE {
		params.task = task
	}
	params.flags |= flags
	params.user_data = s.key
	var id bn_request
	err = e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_submit(ptr, &params, &id, failure)
	})
	runtime.KeepAlive(r.Adapter)
	if err != nil {
		c.mu.Lock()
		delete(c.streams, s.key)
		c.mu.Unlock()
		s.hook.free()
		return nil, err
	}
	s.accepted(id)
	return s, nil
}

// Model returns the engine's model. Close it as well.
func (e *Engine) Model() (*Model, error) {
	var model bn_model
	err := e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_engine_model(ptr, &model, failure)
	})
	if err != nil {
		return nil, err
	}
	return newModel(model), nil
}
