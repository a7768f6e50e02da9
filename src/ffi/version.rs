//! Versions of the library and of its ABI.

/// The ABI's version, changed only if programs compiled against an older header could break.
/// Compare it with `bn_abi_version()`.
pub const BN_ABI_VERSION: u32 = 1;
/// This header's version of the library; `bn_version()` is the linked one's.
pub const BN_VERSION_MAJOR: u32 = 0;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_MINOR: u32 = 1;
/// See `BN_VERSION_MAJOR`.
pub const BN_VERSION_PATCH: u32 = 0;
