import CBnEngine
import Foundation

/// A picture of a request: the bytes of a file, or pixels.
public struct Picture: Sendable {
    var data: [UInt8]
    var width: UInt32 = 0
    var height: UInt32 = 0

    /// The bytes of a PNG, a JPEG, a WebP or a GIF, whose first frame counts.
    public init(_ data: [UInt8]) { self.data = data }
    /// Reads such a file.
    public init(path: String) throws { data = [UInt8](try Data(contentsOf: URL(fileURLWithPath: path))) }
    /// Red, green and blue for each pixel, line by line from the top.
    public init(width: UInt32, height: UInt32, rgb: [UInt8]) { (data, self.width, self.height) = (rgb, width, height) }

    /// The C struct, whose bytes are in the arena.
    func parameters(_ arena: Arena) -> bn_picture {
        var p = bn_picture()
        (p.data, p.data_len) = (arena.array(data), data.count)
        (p.width, p.height) = (width, height)
        return p
    }
}

extension Engine {
    /// The number of positions that a picture takes in a prompt.
    public func picturePositions(_ picture: Picture) throws -> Int {
        let arena = Arena()
        var c = picture.parameters(arena)
        var positions: UInt64 = 0
        try withExtendedLifetime(arena) { try check { bn_picture_positions(core.handle, &c, &positions, $0) } }
        return Int(positions)
    }
}
