import CBnEngine

/// The error of a call or a request.
public struct BnError: Error, CustomStringConvertible, Sendable {
    /// The kind of an error, with the numbers of the C header, which describes them.
    public struct Code: RawRepresentable, Hashable, Sendable {
        public let rawValue: Int32
        public init(rawValue: Int32) { self.rawValue = rawValue }
        /// Swift takes the constants of the header's enum for `Int`s.
        init(_ status: some BinaryInteger) { rawValue = Int32(status) }

        public static let invalidArgument = Code(BN_ERR_INVALID_ARGUMENT)
        public static let notFound = Code(BN_ERR_NOT_FOUND)
        public static let unsupported = Code(BN_ERR_UNSUPPORTED)
        public static let busy = Code(BN_ERR_BUSY)
        public static let queueFull = Code(BN_ERR_QUEUE_FULL)
        public static let outOfMemory = Code(BN_ERR_OUT_OF_MEMORY)
        public static let memoryLimit = Code(BN_ERR_MEMORY_LIMIT)
        public static let io = Code(BN_ERR_IO)
        public static let badModel = Code(BN_ERR_BAD_MODEL)
        public static let shutdown = Code(BN_ERR_SHUTDOWN)
        public static let engineDead = Code(BN_ERR_ENGINE_DEAD)
        public static let forked = Code(BN_ERR_FORKED)
        public static let cancelled = Code(BN_ERR_CANCELLED)
        public static let tooLong = Code(BN_ERR_TOO_LONG)
        public static let `internal` = Code(BN_ERR_INTERNAL)
        public static let timedOut = Code(BN_ERR_TIMED_OUT)

        /// The name in C, like BN_ERR_QUEUE_FULL.
        public var name: String { String(cString: bn_status_name(rawValue)) }
    }

    public let code: Code
    public let message: String
    public var description: String { "\(code.name): \(message)" }
}

/// The version of the linked library, like 0.1.0.
public var libraryVersion: String { String(cString: bn_version()) }

/// Makes a call, and throws its error.
func check(_ call: (UnsafeMutablePointer<bn_error>) -> bn_status) throws {
    var error = bn_error()
    let status = call(&error)
    if status == BN_OK { return }
    let message = withUnsafeBytes(of: &error.message) { String(decoding: $0.prefix { $0 != 0 }, as: UTF8.self) }
    throw BnError(code: .init(rawValue: status), message: message.isEmpty ? String(cString: bn_status_message(status)) : message)
}

func checkABI() throws {
    if bn_abi_version() == BN_ABI_VERSION { return }
    throw BnError(code: .unsupported, message: "the library has ABI \(bn_abi_version()), the header \(BN_ABI_VERSION)")
}

func size<T>(of type: T.Type) -> UInt32 { UInt32(MemoryLayout<T>.size) }

/// Asks for the number of elements, then for the elements, until there is enough room.
func sized<T>(_ zero: T, _ call: (UnsafeMutablePointer<T>?, Int, inout Int, UnsafeMutablePointer<bn_error>) -> bn_status) throws -> [T] {
    var list: [T] = []
    while true {
        var count = 0
        var status: bn_status = 0
        try check { error in
            status = list.withUnsafeMutableBufferPointer { call($0.baseAddress, $0.count, &count, error) }
            return status == BN_ERR_BUFFER_TOO_SMALL ? 0 : status
        }
        if status == BN_OK { return Array(list.prefix(count)) }
        list = Array(repeating: zero, count: count)
    }
}

func sizedText(_ call: (UnsafeMutablePointer<CChar>?, Int, inout Int, UnsafeMutablePointer<bn_error>) -> bn_status) throws -> String {
    String(decoding: try sized(CChar(0), call).map(UInt8.init(bitPattern:)), as: UTF8.self)
}

/// Copies of values for C, which live as long as the arena.
final class Arena {
    private var blocks: [UnsafeMutableRawPointer] = []
    deinit { blocks.forEach { $0.deallocate() } }

    func array<T>(_ list: [T]) -> UnsafePointer<T>? {
        if list.isEmpty { return nil }
        let data = UnsafeMutablePointer<T>.allocate(capacity: list.count)
        data.initialize(from: list, count: list.count) // of trivial types
        blocks.append(UnsafeMutableRawPointer(data))
        return UnsafePointer(data)
    }
    func text(_ text: String) -> bn_string {
        let bytes = Array(text.utf8CString) // with a NUL, so that an empty text is not "not set"
        return bn_string(data: array(bytes), length: bytes.count - 1)
    }
    func optional(_ string: String?) -> bn_string { string.map(text) ?? bn_string() }
    func chat(_ messages: [Message]?, _ json: String?) -> bn_chat {
        var chat = bn_chat()
        let list = (messages ?? []).map { bn_chat_message(role: text($0.role), content: text($0.content)) }
        (chat.messages, chat.messages_count, chat.json) = (array(list), list.count, optional(json))
        return chat
    }
}

extension String {
    init(_ text: bn_string) { self.init(decoding: UnsafeRawBufferPointer(start: text.data, count: text.length), as: UTF8.self) }
}
