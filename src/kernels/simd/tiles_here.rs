//! Whether this machine has matrix tiles, and the system permits them.

use crate::base::os::permit_tiles;
use once_cell::race::OnceBox;
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count};

/// Whether the system lets this process use tiles that `exist`. The first call asks the system. If it agrees,
/// each thread, whether it exists now or later, gets room for tiles when it first uses one.
pub(super) fn permitted() -> bool {
    static ANSWER: OnceBox<bool> = OnceBox::new();
    *ANSWER.get_or_init(|| Box::new(permit_tiles()))
}

/// Whether the processor has AMX-TILE, AMX-INT8 and AMX-BF16, and the system preserves tiles across context switches.
#[allow(unused_unsafe)] // newer compilers know cpuid as safe
pub(super) fn exist() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILE_INT8_AND_BF16: u32 = 1 << 24 | 1 << 25 | 1 << 22;
    const TILE_STATES: u64 = 1 << 17 | 1 << 18;
    // SAFETY: every x86-64 has cpuid; xgetbv, which reads a register, is available if cpuid says so.
    unsafe {
        if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
            return false;
        }
        let (low, high): (u32, u32);
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high, options(nomem, nostack));
        __cpuid_count(7, 0).edx & TILE_INT8_AND_BF16 == TILE_INT8_AND_BF16
            && (u64::from(high) << 32 | u64::from(low)) & TILE_STATES == TILE_STATES
    }
}
