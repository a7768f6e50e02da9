// swift-tools-version:5.9
import PackageDescription

let package = Package(
    name: "BnEngine",
    platforms: [.macOS(.v12)],
    products: [.library(name: "BnEngine", targets: ["BnEngine"])],
    targets: [
        .systemLibrary(name: "CBnEngine", pkgConfig: "bn_engine"),
        .target(name: "BnEngine", dependencies: ["CBnEngine"]),
        .executableTarget(name: "Example", dependencies: ["BnEngine"]),
        .executableTarget(name: "Tests", dependencies: ["BnEngine"]),
    ]
)
