import CBnEngine
import Dispatch
import Foundation

/// The C engine, and a source on a queue of its own that takes events when the engine's descriptor is readable. The
/// source keeps the core until no event will come any more; then both are freed.
final class Core: @unchecked Sendable {
    let handle: OpaquePointer
    private let hooks: Hooks
    private let lock = NSLock()
    private var inboxes: [UInt64: Inbox] = [:] // of requests that have not ended, by user_data
    private var last: UInt64 = 0
    private var over = false
    private var waiters: [CheckedContinuation<Void, Never>] = []
    private let room = 64
    private let events: UnsafeMutablePointer<bn_event>

    init(_ config: inout bn_engine_config, _ hooks: Hooks) throws {
        var engine: OpaquePointer?
        try check { bn_engine_create(&config, &engine, $0) }
        (handle, self.hooks) = (engine!, hooks)
        events = .allocate(capacity: room)
        events.initialize(repeating: bn_event(), count: room)
        let fd = dup(bn_engine_wait_fd(handle, nil))
        if fd < 0 { throw BnError(code: .outOfMemory, message: "no descriptor is free") } // deinit follows
        let source = DispatchSource.makeReadSource(fileDescriptor: fd, queue: DispatchQueue(label: "bn_engine"))
        source.setEventHandler { [self] in if !poll() { source.cancel() } }
        source.setCancelHandler { [self] in
            close(fd)
            source.setEventHandler(handler: nil)
            finish()
        }
        source.resume()
    }

    deinit {
        bn_engine_free(handle)
        events.deallocate()
    }

    func shutdown(_ mode: UInt32) { bn_engine_shutdown(handle, mode, nil) }

    /// Takes waiting events. False when none will ever come.
    private func poll() -> Bool {
        var count = room
        while count == room {
            let status = bn_poll(handle, BN_ANY, events, MemoryLayout<bn_event>.size, room, 0, &count, nil)
            if status == BN_ERR_OUT_OF_MEMORY || status == BN_ERR_MEMORY_LIMIT { // it stays readable: the source calls again
                usleep(1000)
                return true
            }
            if status != BN_OK { return false }
            for i in 0..<count { deliver(events[i]) }
            bn_events_free(events, MemoryLayout<bn_event>.size, count) // those of freed requests are skipped
        }
        return true
    }

    private func deliver(_ event: bn_event) {
        let ended = event.kind == BN_EVENT_COMPLETED
        let inbox = lock.withLock { ended ? inboxes.removeValue(forKey: event.user_data) : inboxes[event.user_data] }!
        let reader: CheckedContinuation<Void, Never>? = lock.withLock {
            inbox.pending = inbox.pending ?? Event()
            inbox.pending!.add(event)
            defer { inbox.reader = nil }
            return inbox.reader
        }
        if ended { bn_request_free(handle, event.request, nil) } // a waiting task finds its place free
        reader?.resume()
    }

    /// Resumes the reader once an event waits, or the last event was taken.
    func wait(_ inbox: Inbox, _ reader: CheckedContinuation<Void, Never>) {
        let ready = lock.withLock { () -> CheckedContinuation<Void, Never>? in
            if inbox.pending != nil || inbox.over { return reader }
            defer { inbox.reader = reader }
            return inbox.reader // of another loop, which ends
        }
        ready?.resume()
    }

    func take(_ inbox: Inbox) -> Event? {
        lock.withLock {
            defer { inbox.pending = nil }
            if inbox.pending?.ending != nil { inbox.over = true }
            return inbox.pending
        }
    }

    func submit(_ request: Request, _ flags: UInt32) throws -> (Inbox, bn_request) {
        let inbox = Inbox(request.onLogits.map(Hook.init))
        let key = lock.withLock { () -> UInt64 in
            last += 1
            inboxes[last] = inbox // before its first event
            return last
        }
        let arena = Arena()
        var parameters = request.parameters(arena)
        parameters.flags |= flags
        parameters.user_data = key
        inbox.hook?.set(&parameters)
        var id: bn_request = 0
        do {
            try withExtendedLifetime((arena, request.adapter)) { try check { bn_submit(handle, &parameters, &id, $0) } }
        } catch {
            lock.withLock { inboxes[key] = nil }
            throw error
        }
        return (inbox, id)
    }

    private func finish() {
        let all = lock.withLock {
            over = true
            defer { waiters = [] }
            return waiters
        }
        all.forEach { $0.resume() }
    }

    func end() async {
        await withCheckedContinuation { continuation in
            let now = lock.withLock {
                if !over { waiters.append(continuation) }
                return over
            }
            if now { continuation.resume() }
        }
    }
}

/// Runs one model for any number of requests. No thread blocks for an answer. When the engine is dropped, its requests
/// are cancelled; streams keep it.
public final class Engine: @unchecked Sendable {
    /// A change of the prefix cache: a block of tokens was added or removed. bn_engine.h describes the
    /// hashes.
    public struct KVEvent: Sendable {
        public enum Kind: UInt32, Sendable {
            case unknown = 0, stored, removed
            /// Forget all blocks.
            case cleared
        }
        public let kind: Kind
        public let hash, parentHash: UInt64
    }
    /// The instruction set of the kernels. Results are the same with any.
    public enum Instructions: UInt32, Sendable {
        case auto = 0, scalar, avx2, avxVNNI, avx512VNNI, avx512VBMI, amx, neon, neonI8MM
    }
    public enum KVType: UInt32, Sendable {
        case f16 = 0, f32, int8, int4
    }

    let core: Core

    /// An engine of a model, or, without one, of the model that is embedded in the library.
    public init(_ model: Model? = nil, _ configuration: Configuration = Configuration()) throws {
        try checkABI()
        var config = bn_engine_config()
        bn_engine_config_init(&config, size(of: bn_engine_config.self))
        let (hooks, arena) = (Hooks(configuration.log), Arena())
        configuration.set(&config, arena)
        config.model = model?.handle
        (config.log, config.log_context) = (hooks.logger, hooks.context)
        core = try withExtendedLifetime((arena, model, configuration.draftModel)) { try Core(&config, hooks) }
    }

    deinit { close() }

    /// Submits a request, and returns the stream of its events.
    public func stream(_ request: Request) throws -> Stream { try submit(request, 0) }

    /// Waits for the whole answer. Throws `CancellationError` if the task was cancelled. If the request was cancelled
    /// otherwise or timed out, `ending` says so.
    public func generate(_ request: Request) async throws -> Event {
        try await last(of: submit(request, BN_REQUEST_NO_STREAM))
    }

    /// The embedding of the request's prompt.
    public func embed(_ request: Request) async throws -> [Float] {
        var embedding = request
        embedding.task = BN_TASK_EMBED
        let ending = try await last(of: submit(embedding, 0)).ending!
        if let failure = ending.failure { throw failure }
        return ending.vector
    }

    /// The relevance of each document to the request's prompt, from 0 to 1, by a model with a head for that
    /// (`scoresPairs`). All are submitted at once.
    public func rerank(_ request: Request, _ documents: [String]) async throws -> [Float] {
        let streams = try documents.map { document -> Stream in
            var each = request
            (each.document, each.task) = (document, BN_TASK_RERANK)
            return try submit(each, 0)
        }
        var scores: [Float] = []
        for stream in streams {
            let ending = try await last(of: stream).ending!
            if let failure = ending.failure { throw failure }
            scores.append(ending.vector[0])
        }
        return scores
    }

    private func submit(_ request: Request, _ flags: UInt32) throws -> Stream {
        let (inbox, id) = try core.submit(request, flags)
        return Stream(self, inbox, id)
    }

    /// The only event of a request that has exactly one.
    func last(of stream: Stream) async throws -> Event {
        let event = try await stream.next()!
        if event.ending?.reason == .cancelled && Task.isCancelled { throw CancellationError() }
        return event
    }

    /// Cancels every request, refuses further ones, and returns at once. It may be called again.
    public func close() { core.shutdown(BN_SHUTDOWN_CANCEL) }

    /// Refuses further requests, and waits until those that were accepted have ended.
    public func drain() async {
        core.shutdown(BN_SHUTDOWN_DRAIN)
        await core.end()
    }

    /// Waits for the running step. No other begins until `resume` or the engine's end. Requests may wait meanwhile.
    public func pause() throws { try check { bn_engine_pause(core.handle, $0) } }

    /// Ends a pause. Requests go on where they were.
    public func resume() throws { try check { bn_engine_resume(core.handle, $0) } }

    /// Computes on `threads` threads from the next step on: 1 to `Configuration.threads`, or 0 for all of
    /// them.
    public func setThreads(_ threads: UInt32) throws { try check { bn_engine_set_threads(core.handle, threads, $0) } }

    /// Compiles a constraint as a request with the same `json` does, and keeps it compiled for later requests.
    public func checkConstraint(_ constraint: Constraint, json: Request.JSON = []) throws {
        let arena = Arena()
        var c = constraint.parameters(arena)
        c.json_flags = json.rawValue
        try withExtendedLifetime(arena) { try check { bn_engine_check_constraint(core.handle, &c, $0) } }
    }

    public func model() throws -> Model {
        var model: OpaquePointer?
        try check { bn_engine_model(core.handle, &model, $0) }
        return Model(owned: model!)
    }

    /// The counters of the engine. bn_engine.h describes them.
    public func statistics() throws -> bn_stats {
        var stats = bn_stats()
        bn_stats_init(&stats, size(of: bn_stats.self))
        try check { bn_engine_stats(core.handle, &stats, $0) }
        return stats
    }

    /// The statistics as Prometheus text.
    public func metrics() throws -> String {
        try sizedText { bn_engine_metrics(core.handle, $0, $1, &$2, $3) }
    }

    /// A readable report on the engine's efficiency. Its wording may change.
    public func report() throws -> String {
        try sizedText { bn_engine_report(core.handle, $0, $1, &$2, $3) }
    }

    /// The changes of the prefix cache since the last call. Needs `kvEventsCapacity`.
    public func kvEvents() throws -> [KVEvent] {
        let room = 256
        var list: [KVEvent] = []
        var events = Array(repeating: bn_kv_event(), count: room)
        var count = room
        while count == room {
            try check { bn_kv_events(core.handle, &events, MemoryLayout<bn_kv_event>.size, room, &count, $0) }
            list += events.prefix(count).map {
                KVEvent(kind: .init(rawValue: $0.kind) ?? .unknown, hash: $0.hash, parentHash: $0.parent_hash)
            }
        }
        return list
    }

    /// Forgets every prefix that is not in use.
    public func clearCache() throws { try check { bn_cache_clear(core.handle, $0) } }

    /// A session as bytes, for `restoreSession` of an engine with the same model.
    public func saveSession(_ name: String) throws -> [UInt8] {
        let arena = Arena()
        let c = arena.text(name)
        return try withExtendedLifetime(arena) { try sized(UInt8(0)) { bn_session_save(core.handle, c, $0, $1, &$2, $3) } }
    }
    /// Restores a session from the result of `saveSession`. Restore only sessions that you have saved
    /// yourself.
    public func restoreSession(_ name: String, _ saved: [UInt8]) throws {
        let arena = Arena()
        let c = arena.text(name)
        try withExtendedLifetime(arena) { try check { bn_session_restore(core.handle, c, saved, saved.count, $0) } }
    }
    /// Forgets a session. It waits for the end of a step.
    public func freeSession(_ name: String) throws {
        let arena = Arena()
        let c = arena.text(name)
        try withExtendedLifetime(arena) { try check { bn_session_free(core.handle, c, $0) } }
    }
}
