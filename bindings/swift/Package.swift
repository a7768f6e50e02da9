// swift-tools-version:5.9
import Foundation
import PackageDescription

// On a Mac, the XCFramework of the release archives, if it is beside this file; else an installed library.
var library = Target.systemLibrary(name: "CBnEngine", pkgConfig: "bn_engine")
#if os(macOS)
    let framework = "bn_engine.xcframework"
    if FileManager.default.fileExists(atPath: Context.packageDirectory + "/" + framework) {
        library = .binaryTarget(name: "CBnEngine", path: framework)
    }
#endif

let package = Package(
    name: "BnEngine",
    platforms: [.macOS(.v12)],
    products: [.library(name: "BnEngine", targets: ["BnEngine"])],
    targets: [
        library,
        .target(name: "BnEngine", dependencies: ["CBnEngine"]),
        .executableTarget(name: "Example", dependencies: ["BnEngine"]),
        .executableTarget(name: "Tests", dependencies: ["BnEngine"]),
    ]
)
