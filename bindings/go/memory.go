package bnengine

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
		free(p)
	}
}

// text copies a string; an empty one is "not set".
func (a *arena) text(s string) bn_string {
	if s == "" {
		return bn_string{}
	}
	return a.some(s)
}

// some copies a string that is set, though it may be empty.
func (a *arena) some(s string) bn_string {
	return bn_string{data: (*byte)(a.keep(copied([]byte(s)))), length: uintptr(len(s))}
}

// json copies a value encoded by encoding/json; nil is "not set".
func (a *arena) json(field string, value any) (bn_string, error) {
	if value == nil {
		return bn_string{}, nil
	}
	text, err := json.Marshal(value)
	if err != nil {
		return bn_string{}, &Error{Code: ErrInvalidArgument, Message: fmt.Sprintf("%s: %s", field, err), cause: err}
	}
	return a.text(string(text)), nil
}

// texts copies a list. One that is empty, but not nil, is set and has no elements.
func (a *arena) texts(list []string) (*bn_string, uintptr) {
	if list == nil {
		return nil, 0
	}
	data := (*bn_string)(a.keep(calloc(uintptr(len(list)), sizeof_bn_string)))
	to := unsafe.Slice(data, len(list))
	for i, s := range list {
		to[i] = a.text(s)
	}
	return data, uintptr(len(list))
}

func (a *arena) tokens(list []uint32) (*uint32, uintptr) {
	if len(list) == 0 {
		return nil, 0
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&list[0])), 4*len(list))
	return (*uint32)(a.keep(copied(bytes))), uintptr(len(list))
}

func (a *arena) samplers(list []Sampler) (*uint32, uintptr) {
	if len(list) == 0 {
		return nil, 0
	}
	data := (*uint32)(a.keep(calloc(uintptr(len(list)), 4)))
	for i, sampler := range list {
		unsafe.Slice(data, len(list))[i] = uint32(sampler)
	}
	return data, uintptr(len(list))
}

func (a *arena) biases(of map[uint32]float32) (*bn_logit_bias, uintptr) {
	if len(of) == 0 {
		return nil, 0
	}
	data := (*bn_logit_bias)(a.keep(calloc(uintptr(len(of)), sizeof_bn_logit_bias)))
	to := unsafe.Slice(data, len(of))[:0]
	for token, bias := range of {
		to = append(to, bn_logit_bias{token: token, bias: float32(bias)})
	}
	return data, uintptr(len(of))
}

func (a *arena) conversation(list []Message) (chat bn_chat) {
	if len(list) == 0 {
		return chat
	}
	data := (*bn_chat_message)(a.keep(calloc(uintptr(len(list)), sizeof_bn_chat_message)))
	to := unsafe.Slice(data, len(list))
	for i, message := range list {
		to[i].role, to[i].content = a.text(message.Role), a.text(message.Content)
	}
	return bn_chat{messages: data, messages_count: uintptr(len(list))}
}

// copied returns a copy of bytes in C's memory, with a NUL after it.
func copied(bytes []byte) unsafe.Pointer {
	p := calloc(uintptr(len(bytes))+1, 1)
	copy(unsafe.Slice((*byte)(p), len(bytes)), bytes)
	return p
}

// goString copies a text of the library that ends with a NUL.
func goString(s *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(s), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(s, n))
}

// goText copies a text of the library.
func goText(s bn_string) string { return string(view(s)) }

func view(s bn_string) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(s.data)), int(s.length)) }

// sized makes a call that writes values of type T. It asks for their number, then for the values, until there
// is enough room.
func sized[T any](call func(data unsafe.Pointer, room uintptr, n *uintptr) error) ([]T, error) {
	var list []T
	for {
		var data unsafe.Pointer
		if len(list) > 0 {
			data = unsafe.Pointer(&list[0])
		}
		var n uintptr
		switch err := call(data, uintptr(len(list)), &n); {
		case err == nil:
			return list[:n], nil
		case errors.Is(err, bufferTooSmall):
			list = make([]T, n)
		default:
			return nil, err
		}
	}
}

const bufferTooSmall Code = BN_ERR_BUFFER_TOO_SMALL
