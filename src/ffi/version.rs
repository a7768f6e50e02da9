//! Versions of the library and of its ABI.

/// Version of the ABI. It changes only if a program compiled against an older header could break.
/// Compare it with `bn_abi_version()`.
pub const BN_ABI_VERSION: u32 = 1;
/// This header's version of the library. `bn_version()` returns the version of the linked one.
pub const BN_VERSION_MAJOR: u32 = 0;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_MINOR: u32 = 1;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_PATCH: u32 = 0;
