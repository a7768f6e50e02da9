// A Go program that links bn_engine through cgo and gets its tokens by polling.
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
	"unsafe"
)

func check(what string, status C.bn_status) {
	if status != C.BN_OK {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, C.GoString(C.bn_status_name(status)))
		os.Exit(1)
	}
}

func main() {
	path := C.CString("builtin:echo")
	defer C.free(unsafe.Pointer(path))
	prompt := C.CString("Grüße aus Go")
	defer C.free(unsafe.Pointer(prompt))

	var config C.bn_engine_config
	check("config", C.bn_engine_config_init(&config, C.uint32_t(unsafe.Sizeof(config))))
	config.model_path = path
	config.model_path_length = C.size_t(len("builtin:echo"))
	var engine *C.bn_engine
	check("create", C.bn_engine_create(&config, &engine, nil))

	var answer strings.Builder
	handle := cgo.NewHandle(&answer) // user_data holds any Go value
	var params C.bn_request_params
	check("params", C.bn_request_params_init(&params, C.uint32_t(unsafe.Sizeof(params))))
	params.prompt = prompt
	params.prompt_length = C.size_t(len("Grüße aus Go"))
	params.user_data = C.uint64_t(handle)
	var request C.bn_request
	check("submit", C.bn_submit(engine, &params, &request))

	for done := false; !done; {
		var event C.bn_event
		var count C.size_t
		check("poll", C.bn_poll(engine, C.BN_ANY, &event, 1, C.BN_WAIT_FOREVER, &count))
		to := cgo.Handle(event.user_data).Value().(*strings.Builder)
		to.WriteString(C.GoStringN(event.text, C.int(event.text_length)))
		done = event.kind == C.BN_EVENT_COMPLETED
	}
	check("release", C.bn_release(engine, request))
	check("destroy", C.bn_engine_destroy(engine))
	handle.Delete()
	if answer.String() != "Grüße aus Go" {
		fmt.Fprintf(os.Stderr, "got %q\n", answer.String())
		os.Exit(1)
	}
	fmt.Println(answer.String())
}
