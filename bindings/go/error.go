package bnengine

import (
	"fmt"
)

// Code is the kind of an error. The numbers are those of the C header.
type Code int32

// The kinds of errors. bn_engine.h describes them.
const (
	ErrInvalidArgument Code = BN_ERR_INVALID_ARGUMENT
	ErrNotFound        Code = BN_ERR_NOT_FOUND
	ErrUnsupported     Code = BN_ERR_UNSUPPORTED
	ErrBusy            Code = BN_ERR_BUSY
	ErrQueueFull       Code = BN_ERR_QUEUE_FULL
	ErrOutOfMemory     Code = BN_ERR_OUT_OF_MEMORY
	ErrMemoryLimit     Code = BN_ERR_MEMORY_LIMIT
	ErrIO              Code = BN_ERR_IO
	ErrBadModel        Code = BN_ERR_BAD_MODEL
	ErrWrongMode       Code = BN_ERR_WRONG_MODE
	ErrShutdown        Code = BN_ERR_SHUTDOWN // also of what is used after Close
	ErrEngineDead      Code = BN_ERR_ENGINE_DEAD
	ErrForked          Code = BN_ERR_FORKED
	ErrCancelled       Code = BN_ERR_CANCELLED
	ErrTooLong         Code = BN_ERR_TOO_LONG
	ErrInternal        Code = BN_ERR_INTERNAL
	ErrTimedOut        Code = BN_ERR_TIMED_OUT
)

// Error returns what the code means, in English.
func (c Code) Error() string { return goString(bn_status_message(bn_status(c))) }

// Name returns the code's name in C, like BN_ERR_QUEUE_FULL.
func (c Code) Name() string { return goString(bn_status_name(bn_status(c))) }

// Error is the reason why a call or a request failed.
type Error struct {
	Code    Code
	Message string // what went wrong, where, and what to do
	cause   error  // of the context that ended the request
}

func (e *Error) Error() string {
	return fmt.Sprintf("bnengine: %s (%s)", e.Message, e.Code.Name())
}

// Is reports whether target is the error's Code.
func (e *Error) Is(target error) bool { return target == e.Code }

// Unwrap returns the error of the context that ended the request, or nil.
func (e *Error) Unwrap() error { return e.cause }

var errClosed = &Error{Code: ErrShutdown, Message: "used after Close"}

// try makes a call that can fail.
func try(call func(*bn_error) bn_status) error {
	var failure bn_error
	status := call(&failure)
	if status == BN_OK {
		return nil
	}
	if failure.message[0] == 0 {
		return &Error{Code: Code(status), Message: Code(status).Error()}
	}
	return &Error{Code: Code(status), Message: goString(&failure.message[0])}
}

// Version returns the version of the linked library, like 0.1.0.
func Version() string { return goString(bn_version()) }

// checkABI refuses a library that the package was not compiled for.
func checkABI() error {
	if loadError != nil {
		return &Error{Code: ErrNotFound, Message: loadError.Error()}
	}
	if got := bn_abi_version(); got != BN_ABI_VERSION {
		return &Error{Code: ErrUnsupported, Message: fmt.Sprintf("the library has ABI %d, the header %d", got, BN_ABI_VERSION)}
	}
	return nil
}
