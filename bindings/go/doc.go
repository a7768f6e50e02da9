// Package bnengine runs language models inside a Go program with the bn_engine library.
//
// An [Engine] runs many requests together. [Engine.Generate] waits for a whole answer, [Engine.Stream] returns a
// [Stream] of its parts, [Engine.Embed] a vector. All methods may be called from any goroutine. No goroutine and no
// thread blocks in C for an answer: one goroutine of each engine waits for the engine's descriptor in the runtime's
// poller, and hands the events to those who wait.
//
// A context that is cancelled ends its request. The call returns when the engine has ended it, at most a step of the
// model later, so that its place in the queue is free again.
//
// Errors are of type [*Error]. They match their [Code] and, if a context ended the request, the error of the context:
//
//	errors.Is(err, bnengine.ErrQueueFull)
//	errors.Is(err, context.Canceled)
//
// In structs of options, a zero field means the library's default.
//
// The shared library is linked as pkg-config says (bn_engine). With the build tag bn_engine_static, the static one is. Without
// cgo, or with the tag bn_engine_purego, no C compiler is needed: the shared library is found when the program runs, as the
// file that BN_ENGINE_LIBRARY names, beside the program, or where the system looks.
package bnengine
