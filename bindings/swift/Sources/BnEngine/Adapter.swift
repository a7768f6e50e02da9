import CBnEngine

/// A LoRA adapter of an engine, for `Request.adapter`: a PEFT folder, or a GGUF file of llama.cpp. Requests that use it
/// keep it.
public final class Adapter: @unchecked Sendable {
    let handle: OpaquePointer

    /// Reads the adapter on the calling thread. Requests go on meanwhile.
    public init(_ engine: Engine, _ path: String) throws {
        let arena = Arena()
        let text = arena.text(path)
        var adapter: OpaquePointer?
        try withExtendedLifetime(arena) { try check { bn_adapter_open(engine.core.handle, text, &adapter, $0) } }
        handle = adapter!
    }

    deinit { bn_adapter_free(handle) }

    /// A hash of its contents, the same in each engine that opens it.
    public func fingerprint() throws -> UInt64 {
        var hash: UInt64 = 0
        try check { _ in bn_adapter_fingerprint(handle, &hash) }
        return hash
    }
}
