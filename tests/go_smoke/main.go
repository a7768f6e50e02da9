// A Go program that links bn_engine through cgo. No thread of it blocks in C: a duplicate of the wait descriptor is an
// os.File, and the runtime's poller, which is edge-triggered, wakes the goroutine that waits for it.
package main

/*
#cgo pkg-config: bn_engine
#include <bn_engine.h>
#include <stdlib.h>
*/
import "C"

import (
	"fmt"
	"os"
	"runtime/cgo"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

const room = 4 // less than there are requests, so that one poll does not take all

func check(what string, status C.bn_status) {
	if status != C.BN_OK {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, C.GoString(C.bn_status_name(status)))
		os.Exit(1)
	}
}

// Text that C may keep until free.
func text(s string) (C.bn_string, func()) {
	data := C.CString(s)
	return C.bn_string{data: data, length: C.size_t(len(s))}, func() { C.free(unsafe.Pointer(data)) }
}

func create() *C.bn_engine {
	path, free := text("builtin:echo")
	defer free()
	var config C.bn_engine_config
	check("config", C.bn_engine_config_init(&config, C.uint32_t(unsafe.Sizeof(config))))
	config.model_path = path
	var engine *C.bn_engine
	check("create", C.bn_engine_create(&config, &engine, nil))
	return engine
}

func submit(engine *C.bn_engine, prompt string, answer cgo.Handle) {
	data, free := text(prompt)
	defer free()
	var params C.bn_request_params
	check("params", C.bn_request_params_init(&params, C.uint32_t(unsafe.Sizeof(params))))
	params.prompt = data
	params.user_data = C.uint64_t(answer) // holds any Go value
	var request C.bn_request
	check("submit", C.bn_submit(engine, &params, &request, nil))
}

// Takes what waits until a poll comes back short. False when nothing will ever come.
func takeAll(engine *C.bn_engine) bool {
	for count := C.size_t(room); count == room; {
		var events [room]C.bn_event
		status := C.bn_poll(engine, C.BN_ANY, &events[0], C.size_t(unsafe.Sizeof(events[0])), room, 0, &count, nil)
		if status == C.BN_ERR_SHUTDOWN {
			return false
		}
		check("poll", status)
		for _, event := range events[:count] {
			to := cgo.Handle(event.user_data).Value().(*strings.Builder)
			to.WriteString(C.GoStringN(event.text.data, C.int(event.text.length)))
			if event.kind == C.BN_EVENT_COMPLETED { // its events are freed with it
				check("release", C.bn_release(engine, event.request, nil))
			}
		}
		check("free", C.bn_events_free(engine, &events[0], C.size_t(unsafe.Sizeof(events[0])), count))
	}
	return true
}

// Waits in the runtime's poller until the engine has drained.
func takeUntilTheEnd(engine *C.bn_engine, done chan<- error) {
	fd, err := syscall.Dup(int(C.bn_engine_wait_fd(engine, nil)))
	if err != nil {
		done <- err
		return
	}
	syscall.SetNonblock(fd, true) // or os.NewFile keeps it out of the poller
	file := os.NewFile(uintptr(fd), "bn_engine")
	defer file.Close()
	conn, err := file.SyscallConn()
	if err == nil {
		// Called at first and after each edge, until it returns true.
		err = conn.Read(func(uintptr) bool { return !takeAll(engine) })
	}
	done <- err
}

func main() {
	const requests = 50
	engine := create()
	done := make(chan error)
	go takeUntilTheEnd(engine, done)
	answers := make([]strings.Builder, requests)
	var handles []cgo.Handle
	for i := range answers {
		handles = append(handles, cgo.NewHandle(&answers[i]))
		submit(engine, fmt.Sprintf("Grüße aus Go, %d", i), handles[i])
	}
	check("drain", C.bn_engine_shutdown(engine, C.BN_SHUTDOWN_DRAIN, nil))
	select {
	case err := <-done:
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	case <-time.After(30 * time.Second):
		fmt.Fprintln(os.Stderr, "the wait descriptor did not wake the poller")
		os.Exit(1)
	}
	check("destroy", C.bn_engine_destroy(engine))
	for i := range answers {
		handles[i].Delete()
		if want := fmt.Sprintf("Grüße aus Go, %d", i); answers[i].String() != want {
			fmt.Fprintf(os.Stderr, "got %q, not %q\n", answers[i].String(), want)
			os.Exit(1)
		}
	}
	fmt.Println(answers[0].String())
}
