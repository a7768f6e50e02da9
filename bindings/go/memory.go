package bnengine

// #include <bn_engine.h>
// #include <stdlib.h>
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"unsafe"
)

// arena holds copies of Go values for C, where a struct has to point to them. Its zero value is empty.
type arena []unsafe.Pointer

func (a *arena) keep(p unsafe.Pointer) unsafe.Pointer {
	*a = append(*a, p)
	return p
}

func (a *arena) free() {
	for _, p := range *a {
		C.free(p)
	}
}

// text copies a string; an empty one is "not set".
func (a *arena) text(s string) C.bn_string {
	if s == "" {
		return C.bn_string{}
	}
	return a.some(s)
}

// some copies a string that is set, though it may be empty.
func (a *arena) some(s string) C.bn_string {
	return C.bn_string{data: (*C.char)(a.keep(unsafe.Pointer(C.CString(s)))), length: C.size_t(len(s))}
}

// json copies what encoding/json makes of a value; nil is "not set".
func (a *arena) json(field string, value any) (C.bn_string, error) {
	if value == nil {
		return C.bn_string{}, nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return C.bn_string{}, &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("%s: %s", field, err), cause: err}
	}
	return a.text(string(text)), nil
}

// texts copies a list. One that is empty, but not nil, is set and has no elements.
func (a *arena) texts(list []string) (*C.bn_string, C.size_t) {
	if list == nil {
		return nil, 0
	}
	data := (*C.bn_string)(a.keep(C.calloc(C.size_t(len(list)), C.sizeof_bn_string)))
	to := unsafe.Slice(data, len(list))
	for i, s := range list {
		to[i] = a.text(s)
	}
	return data, C.size_t(len(list))
}

func (a *arena) tokens(list []uint32) (*C.uint32_t, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), 4*len(list))
	return (*C.uint32_t)(a.keep(C.CBytes(bytes))), C.size_t(len(list))
}

func (a *arena) samplers(list []Sampler) (*C.int32_t, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	data := (*C.int32_t)(a.keep(C.calloc(C.size_t(len(list)), C.sizeof_int32_t)))
	for i, sampler := range list {
		unsafe.Slice(data, len(list))[i] = C.int32_t(sampler)
	}
	return data, C.size_t(len(list))
}

func (a *arena) biases(of map[uint32]float32) (*C.bn_logit_bias, C.size_t) {
	if len(of) == 0 {
		return nil, 0
	}
	data := (*C.bn_logit_bias)(a.keep(C.calloc(C.size_t(len(of)), C.sizeof_bn_logit_bias)))
	to := unsafe.Slice(data, len(of))[:0]
	for token, bias := range of {
		to = append(to, C.bn_logit_bias{token: C.uint32_t(token), bias: C.float(bias)})
	}
	return data, C.size_t(len(of))
}

func (a *arena) messages(list []Message) (*C.bn_chat_message, C.size_t) {
	if len(list) == 0 {
		return nil, 0
	}
	data := (*C.bn_chat_message)(a.keep(C.calloc(C.size_t(len(list)), C.sizeof_bn_chat_message)))
	to := unsafe.Slice(data, len(list))
	for i, message := range list {
		to[i].role, to[i].content = a.text(message.Role), a.text(message.Content)
	}
	return data, C.size_t(len(list))
}

// goText copies a text of the library's.
func goText(s C.bn_string) string { return string(view(s)) }

func view(s C.bn_string) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s.data)), int(s.length)) }

// sized makes a call that writes T's: first it asks for their number, then it takes them, until there is room.
func sized[T any](call func(data unsafe.Pointer, room C.size_t, n *C.size_t) error) ([]T, error) {
	var list []T
	for {
		var data unsafe.Pointer
		if len(list) > 0 {
			data = unsafe.Pointer(&list[0])
		}
		var n C.size_t
		switch err := call(data, C.size_t(len(list)), &n); {
		case err == nil:
			return list[:n], nil
		case errors.Is(err, bufferTooSmall):
			list = make([]T, n)
		default:
			return nil, err
		}
	}
}

const bufferTooSmall Code = C.BN_ERR_BUFFER_TOO_SMALL
