package bnengine

// #include <bn_engine.h>
import "C"

import (
	"time"
	"unsafe"
)

// Latency is a distribution of times.
type Latency struct {
	P50, P90, P99, Sum time.Duration
	Count              uint64
}

// Stats are an engine's counters. bn_engine.h describes them. Metrics has all of them, with histograms.
type Stats struct {
	Accepted, RejectedInvalid, RejectedQueueFull, RejectedTooLong, RejectedMemory, RejectedShutdown uint64

	// Requests that ended, by FinishReason.
	Stopped, StoppedByString, ReachedLength, Cancelled, TimedOut, Failed, Embedded uint64

	Queued, Running, Paused, Unreleased, QueueCapacity                               uint64 // requests now
	PromptTokens, GeneratedTokens, CachedTokens, RecomputedTokens                    uint64
	DraftedTokens, AcceptedTokens                                                    uint64
	GrammarsCompiled, GrammarsReused                                                 uint64 // constraints
	Steps, Preemptions, Pauses                                                       uint64
	KVBlocksUsed, KVBlocksTotal, KVBlocksCached, KVEvictions, KVBytes                uint64
	MemoryUsed, MemoryLimit, MemoryPeak                                              uint64 // bytes
	MaxSequenceLength                                                                uint64
	MeanBatchSize, BatchUtilization, GeneratedTokensPerSecond, PromptTokensPerSecond float64
	QueueWait, TimeToFirstToken, InterToken, EndToEnd                                Latency
}

// Stats returns the engine's counters.
func (e *Engine) Stats() (Stats, error) {
	var c C.bn_stats
	C.bn_stats_init(&c, C.sizeof_bn_stats)
	err := e.use(func(ptr *C.bn_engine, failure *C.bn_error) C.bn_status { return C.bn_engine_stats(ptr, &c, failure) })
	if err != nil {
		return Stats{}, err
	}
	return Stats{
		Accepted: uint64(c.accepted), RejectedInvalid: uint64(c.rejected_invalid),
		RejectedQueueFull: uint64(c.rejected_queue_full), RejectedTooLong: uint64(c.rejected_too_long),
		RejectedMemory: uint64(c.rejected_memory), RejectedShutdown: uint64(c.rejected_shutdown),
		Stopped: uint64(c.completed_stop), StoppedByString: uint64(c.completed_stop_string),
		ReachedLength: uint64(c.completed_length), Cancelled: uint64(c.completed_cancelled),
		TimedOut: uint64(c.completed_timed_out), Failed: uint64(c.completed_failed), Embedded: uint64(c.completed_embedding),
		Queued: uint64(c.queued), Running: uint64(c.running), Paused: uint64(c.paused),
		Unreleased: uint64(c.unreleased), QueueCapacity: uint64(c.queue_capacity),
		PromptTokens: uint64(c.prompt_tokens), GeneratedTokens: uint64(c.generated_tokens),
		CachedTokens: uint64(c.cached_tokens), RecomputedTokens: uint64(c.recomputed_tokens),
		DraftedTokens: uint64(c.drafted_tokens), AcceptedTokens: uint64(c.accepted_tokens),
		GrammarsCompiled: uint64(c.grammars_compiled), GrammarsReused: uint64(c.grammars_reused),
		Steps: uint64(c.steps), Preemptions: uint64(c.preemptions), Pauses: uint64(c.pauses),
		KVBlocksUsed: uint64(c.kv_blocks_used), KVBlocksTotal: uint64(c.kv_blocks_total),
		KVBlocksCached: uint64(c.kv_blocks_cached), KVEvictions: uint64(c.kv_evictions), KVBytes: uint64(c.kv_bytes),
		MemoryUsed: uint64(c.memory_used_bytes), MemoryLimit: uint64(c.memory_limit_bytes),
		MemoryPeak: uint64(c.memory_peak_bytes), MaxSequenceLength: uint64(c.max_sequence_length),
		MeanBatchSize: float64(c.mean_batch_size), BatchUtilization: float64(c.batch_utilization),
		GeneratedTokensPerSecond: float64(c.generated_tokens_per_second),
		PromptTokensPerSecond:    float64(c.prompt_tokens_per_second),
		QueueWait:                latency(c.queue_wait), TimeToFirstToken: latency(c.time_to_first_token),
		InterToken: latency(c.inter_token), EndToEnd: latency(c.end_to_end),
	}, nil
}

func latency(c C.bn_latency) Latency {
	return Latency{
		P50: time.Duration(c.p50_ns), P90: time.Duration(c.p90_ns), P99: time.Duration(c.p99_ns),
		Sum: time.Duration(c.sum_ns), Count: uint64(c.count),
	}
}

// Metrics returns the statistics as Prometheus text.
func (e *Engine) Metrics() (string, error) {
	text, err := sized[byte](func(data unsafe.Pointer, room C.size_t, n *C.size_t) error {
		return e.use(func(ptr *C.bn_engine, failure *C.bn_error) C.bn_status {
			return C.bn_engine_metrics(ptr, (*C.char)(data), room, n, failure)
		})
	})
	return string(text), err
}
