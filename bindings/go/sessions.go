package bnengine

import "unsafe"

// SaveSession returns a session as bytes, for RestoreSession of an engine with the same model.
func (e *Engine) SaveSession(name string) ([]byte, error) {
	var memory arena
	defer memory.free()
	s := memory.text(name)
	return sized[byte](func(data unsafe.Pointer, room uintptr, n *uintptr) error {
		return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
			return bn_session_save(ptr, s, (*uint8)(data), room, n, failure)
		})
	})
}

// RestoreSession restores a session from the result of SaveSession. Restore only sessions that you have saved
// yourself.
func (e *Engine) RestoreSession(name string, data []byte) error {
	var memory arena
	defer memory.free()
	s := memory.text(name)
	var first *uint8
	if len(data) > 0 {
		first = &data[0]
	}
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status {
		return bn_session_restore(ptr, s, first, uintptr(len(data)), failure)
	})
}

// FreeSession forgets a session. It waits for the end of a step.
func (e *Engine) FreeSession(name string) error {
	var memory arena
	defer memory.free()
	s := memory.text(name)
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status { return bn_session_free(ptr, s, failure) })
}

// ClearCache forgets every prefix that is not in use.
func (e *Engine) ClearCache() error {
	return e.use(func(ptr bn_engine, failure *bn_error) bn_status { return bn_cache_clear(ptr, failure) })
}

// KVEventKind is the kind of a change of the prefix cache.
type KVEventKind uint32

// The kinds of changes. bn_engine.h describes them and the hashes.
const (
	KVStored  KVEventKind = BN_KV_EVENT_STORED
	KVRemoved KVEventKind = BN_KV_EVENT_REMOVED
	KVCleared KVEventKind = BN_KV_EVENT_CLEARED // forget all blocks
)

// KVEvent is a change of the prefix cache: a block of tokens was added or removed.
type KVEvent struct {
	Kind             KVEventKind
	Hash, ParentHash uint64
}

// KVEvents returns the changes of the prefix cache since the last call. Without Options.KVEvents it fails.
func (e *Engine) KVEvents() ([]KVEvent, error) {
	var list []KVEvent
	var events [256]bn_kv_event
	for n := uintptr(len(events)); n == uintptr(len(events)); {
		err := e.use(func(ptr bn_engine, failure *bn_error) bn_status {
			return bn_kv_events(ptr, &events[0], sizeof_bn_kv_event, uintptr(len(events)), &n, failure)
		})
		if err != nil {
			return list, err
		}
		for _, event := range events[:n] {
			list = append(list, KVEvent{KVEventKind(event.kind), event.hash, event.parent_hash})
		}
	}
	return list, nil
}
