package bnengine

import (
	"time"
	"unsafe"
)

// Latency is a distribution of times.
type Latency struct {
	P50, P90, P99, Sum time.Duration
	Count              uint64
	Buckets            [BN_LATENCY_BUCKETS]uint64 // bn_latency_bound_ns has their bounds
}

// Lengths is a distribution of lengths in tokens.
type Lengths struct {
	Count, Sum uint64
	Buckets    [BN_LENGTH_BUCKETS]uint64 // bn_length_bound has their bounds
}

// Stats returns the engine's counters.
func (e *Engine) Stats() (Stats, error) {
	var c bn_stats
	bn_stats_init(&c, sizeof_bn_stats)
	err := e.use(func(ptr bn_engine, failure *bn_error) bn_status { return bn_engine_stats(ptr, &c, failure) })
	if err != nil {
		return Stats{}, err
	}
	return statsOf(&c), nil
}

func latency(c bn_latency) Latency {
	l := Latency{
		P50: time.Duration(c.p50_ns), P90: time.Duration(c.p90_ns), P99: time.Duration(c.p99_ns),
		Sum: time.Duration(c.sum_ns), Count: c.count,
	}
	for i, n := range c.buckets {
		l.Buckets[i] = n
	}
	return l
}

func lengths(c bn_lengths) Lengths {
	l := Lengths{Count: c.count, Sum: c.sum}
	for i, n := range c.buckets {
		l.Buckets[i] = n
	}
	return l
}

func durations(c [4]uint64) (d [4]time.Duration) {
	for i, ns := range c {
		d[i] = time.Duration(ns)
	}
	return d
}

// Metrics returns the statistics as Prometheus text.
func (e *Engine) Metrics() (string, error) {
	text, err := sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
			return bn_engine_metrics(ptr, (*byte)(data), room, n, failure)
		})
	})
	return string(text), err
}

// Report returns a readable report on the engine's efficiency. Its wording may change.
func (e *Engine) Report() (string, error) {
	text, err := sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
			return bn_engine_report(ptr, (*byte)(data), room, n, failure)
		})
	})
	return string(text), err
}

// State is the state of an engine.
type State uint32

// The states of an engine.
const (
	StateRunning  State = BN_STATE_RUNNING
	StateDraining State = BN_STATE_DRAINING
	StateDrained  State = BN_STATE_DRAINED
	StateDead     State = BN_STATE_DEAD // of a bug, or its last device was lost
)

// State returns the state of the engine.
func (e *Engine) State() (state State, err error) {
	err = e.use(func(ptr bn_engine, _ *bn_error) bn_status { return bn_engine_state(ptr, (*uint32)(&state)) })
	return state, err
}
