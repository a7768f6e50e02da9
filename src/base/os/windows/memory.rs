//! Memory that this process may still take: free memory of the machine, what the system can still commit (with the page
//! file), and what the limits of the process's job leave.

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

/// Bytes that can be touched without evicting pages that this process needs. Memory is committed when it is
/// allocated, so memory that engines claim and have not touched counts twice if the commit limit is the smaller one.
pub fn free_pages() -> Option<u64> {
    machine().into_iter().chain(job()).min()
}

/// Windows limits committed memory, not addresses.
pub fn free_addresses() -> Option<u64> {
    None
}

fn machine() -> Option<u64> {
    let mut status = MEMORYSTATUSEX { dwLength: size_of::<MEMORYSTATUSEX>() as u32, ..Default::default() };
    // SAFETY: a struct of the size that it says.
    let known = unsafe { GlobalMemoryStatusEx(&mut status) } != 0;
    known.then(|| status.ullAvailPhys.min(status.ullAvailPageFile))
}

/// Bytes that the limits of this process's job leave. Not every version of Windows reports what the job's
/// processes use now, so their peak is used instead.
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

/// Bytes that the system has committed to this process.
fn allocated() -> Option<u64> {
    let mut counters = PROCESS_MEMORY_COUNTERS_EX::default();
    let size = size_of_val(&counters) as u32;
    // SAFETY: a struct of the size that is given; the pseudo handle needs no closing.
    let known = unsafe {
        GetProcessMemoryInfo(GetCurrentProcess(), (&raw mut counters).cast::<PROCESS_MEMORY_COUNTERS>(), size)
    };
    // Both have the same meaning, but Windows 7 sets only the first, and Wine only the second.
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
