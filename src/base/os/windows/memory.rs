//! Memory that this process may still take: the machine's, what the system still promises (the page file), and what the
//! limits of the process's job leave.

use std::ptr::null_mut;
use windows_sys::Win32::System::JobObjects::{
    JOB_OBJECT_LIMIT_JOB_MEMORY, JOB_OBJECT_LIMIT_PROCESS_MEMORY, JOBOBJECT_EXTENDED_LIMIT_INFORMATION,
    JobObjectExtendedLimitInformation, QueryInformationJobObject,
};
use windows_sys::Win32::System::ProcessStatus::{
    GetProcessMemoryInfo, PROCESS_MEMORY_COUNTERS, PROCESS_MEMORY_COUNTERS_EX,
};
use windows_sys::Win32::System::SystemInformation::{GlobalMemoryStatusEx, MEMORYSTATUSEX};
use windows_sys::Win32::System::Threading::GetCurrentProcess;

/// Bytes that can be touched without evicting pages that this process needs. Memory counts as promised when it is
/// allocated, so claims of engines that were not touched yet are counted twice where the promises are what is short.
pub fn free_pages() -> Option<u64> {
    machine().into_iter().chain(job()).min()
}

/// Windows limits what is promised, not addresses.
pub fn free_addresses() -> Option<u64> {
    None
}

fn machine() -> Option<u64> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: a struct of the size that it says.
    let known = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
    known.then(|| status.ullAvailPhys.min(status.ullAvailPageFile))
}

/// What the limits of this process's job leave. How much all processes of a job have now cannot be asked in every
/// version of Windows: the most that they ever had stands for it.
fn job() -> Option<u64> {
    let mut limits = JOBOBJECT_EXTENDED_LIMIT_INFORMATION::default();
    // SAFETY: a struct of this class and its size; without a handle it is this process's job.
    let known = unsafe {
        QueryInformationJobObject(
            null_mut(),
            JobObjectExtendedLimitInformation,
            (&raw mut limits).cast(),
            size_of_val(&limits) as u32,
            null_mut(),
        )
    };
    let flags = if known != 0 { limits.BasicLimitInformation.LimitFlags } else { 0 };
    let all = (flags & JOB_OBJECT_LIMIT_JOB_MEMORY != 0)
        .then(|| limits.JobMemoryLimit.saturating_sub(limits.PeakJobMemoryUsed) as u64);
    let own = (flags & JOB_OBJECT_LIMIT_PROCESS_MEMORY != 0)
        .then(|| Some((limits.ProcessMemoryLimit as u64).saturating_sub(allocated()?)));
    all.into_iter().chain(own.flatten()).min()
}

/// Bytes that the system has promised this process.
fn allocated() -> Option<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS_EX::default();
    let size = size_of_val(&counters) as u32;
    // SAFETY: a struct of the size that is given; the pseudo handle needs no closing.
    let known = unsafe {
        GetProcessMemoryInfo(GetCurrentProcess(), (&raw mut counters).cast::<PROCESS_MEMORY_COUNTERS>(), size)
    };
    // Both say the same, but Windows 7 fills the first alone, Wine the second.
    (known != 0).then_some(counters.PrivateUsage.max(counters.PagefileUsage) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_says_what_it_has() {
        let free = free_pages().unwrap();
        assert!(free > 0 && free < 1 << 50, "{free}");
        assert!(allocated().unwrap() > 0);
    }
}
