//! Memory that this process may still take: the kernel's estimate, limited by its control groups and the process's own
//! limits. Only Linux reports it in these files; elsewhere the answers are None.

use std::path::{Path, PathBuf};

/// Bytes that can be touched without evicting pages that this process needs, such as mapped weights. None if the
/// system does not report it.
pub fn free_pages() -> Option<u64> {
    pages(Path::new("/"))
}

/// Address space left by the process's own limits (`ulimit -v`, `-d`); None without limits.
pub fn free_addresses() -> Option<u64> {
    let left = |resource, key| {
        let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: `limit` is writable.
        let known = unsafe { libc::getrlimit(resource, &mut limit) } == 0;
        let bounded = known && limit.rlim_cur != libc::RLIM_INFINITY;
        let used = bounded.then(|| kilobytes(Path::new("/"), "proc/self/status", key))?;
        Some(limit.rlim_cur.saturating_sub(used?))
    };
    [left(libc::RLIMIT_AS, "VmSize:"), left(libc::RLIMIT_DATA, "VmData:")].into_iter().flatten().min()
}

/// `root` is `/`, or a folder with copies of the files.
fn pages(root: &Path) -> Option<u64> {
    // The kernel counts pages of mapped files as available, but this process needs its own.
    let mapped = kilobytes(root, "proc/self/status", "RssFile:").unwrap_or(0);
    let machine = kilobytes(root, "proc/meminfo", "MemAvailable:").map(|free| free.saturating_sub(mapped));
    groups(root, mapped).into_iter().chain(machine).min()
}

fn read(path: PathBuf) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Parses a line like `MemAvailable:    24190200 kB`, in bytes.
fn kilobytes(root: &Path, file: &str, key: &str) -> Option<u64> {
    let text = read(root.join(file));
    let value = text.lines().find_map(|line| line.strip_prefix(key))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.saturating_mul(1024))
}

/// File names and keys of one version of control groups.
struct Version {
    limits: &'static [&'static str],
    used: &'static str,
    /// Key in `memory.stat`: pages that the kernel reclaims first, in this group and those below it.
    inactive: &'static str,
}

const V1: Version = Version {
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    inactive: "total_inactive_file ",
};
const V2: Version =
    Version { limits: &["memory.max", "memory.high"], used: "memory.current", inactive: "inactive_file " };

impl Version {
    /// Free bytes of the group at the folder `dir`; None if it has no limit.
    fn free(&self, dir: &Path, mapped: u64) -> Option<u64> {
        let number = |name: &str| read(dir.join(name)).trim().parse::<u64>().ok();
        let limit = self.limits.iter().filter_map(|name| number(name)).min()?;
        let stat = read(dir.join("memory.stat"));
        let inactive =
            stat.lines().find_map(|line| line.strip_prefix(self.inactive)?.trim().parse::<u64>().ok());
        let reclaimable = inactive.unwrap_or(0).saturating_sub(mapped);
        Some(limit.saturating_sub(number(self.used)?.saturating_sub(reclaimable)))
    }
}

/// Free bytes of each control group of this process, from its own up to the topmost mounted one.
fn groups(root: &Path, mapped: u64) -> Vec<u64> {
    let mounts = read(root.join("proc/self/mountinfo"));
    let mut free = Vec::new();
    for line in read(root.join("proc/self/cgroup")).lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => &V2,
            _ if controllers.split(',').any(|name| name == "memory") => &V1,
            _ => continue,
        };
        let Some((top, below)) =
            mounts.lines().find_map(|mount| mounted(mount, controllers.is_empty(), group))
        else {
            continue;
        };
        let top = root.join(top.trim_start_matches('/'));
        free.extend(below.ancestors().filter_map(|level| version.free(&top.join(level), mapped)));
    }
    free
}

/// Parses a line of `mountinfo`: the mount point of the memory controller's hierarchy, and the path of
/// `group` below it. A container may see no more than its own group, directly at the mount point.
fn mounted<'a>(line: &'a str, v2: bool, group: &'a str) -> Option<(&'a str, &'a Path)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut mount = mount.split(' ').skip(3);
    let (shown, point) = (mount.next()?, mount.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let wanted =
        if v2 { kind == "cgroup2" } else { kind == "cgroup" && options.split(',').any(|o| o == "memory") };
    let below = Path::new(group).strip_prefix(shown).unwrap_or(Path::new(""));
    wanted.then_some((point, below))
}

#[cfg(all(test, not(any(miri, loom))))]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A folder with these files; removed on drop.
    struct Root(PathBuf);

    impl Root {
        fn new(name: &str, files: &[(&str, String)]) -> Self {
            let root = std::env::temp_dir().join(format!("bn-free-memory-{name}-{}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(root)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn meminfo(gib: u64) -> (&'static str, String) {
        ("proc/meminfo", format!("MemTotal: 99999999 kB\nMemAvailable:   {} kB\n", gib << 20))
    }

    fn file(path: &'static str, text: impl ToString) -> (&'static str, String) {
        (path, format!("{}\n", text.to_string()))
    }

    const MOUNT_V2: &str = "24 1 8:1 / / rw - ext4 /dev/sda1 rw\n\
                            30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn without_groups_the_machine_decides() {
        let root =
            Root::new("none", &[meminfo(8), file("proc/self/status", "VmRSS: 9 kB\nRssFile:\t1048576 kB")]);
        assert_eq!(pages(&root.0), Some(7 * GIB), "pages of mapped files are needed");
        assert_eq!(pages(&root.0.join("nosuch")), None);
    }

    #[test]
    fn the_tightest_group_of_v2_decides() {
        let root = Root::new(
            "v2",
            &[
                meminfo(16),
                file("proc/self/cgroup", "0::/app/engine"),
                file("proc/self/mountinfo", MOUNT_V2),
                file("sys/fs/cgroup/memory.stat", "inactive_file 7"),
                file("sys/fs/cgroup/app/memory.max", 4 * GIB),
                file("sys/fs/cgroup/app/memory.high", "max"),
                file("sys/fs/cgroup/app/memory.current", 3 * GIB),
                file("sys/fs/cgroup/app/memory.stat", format!("anon 1\nactive_file 5\ninactive_file {GIB}")),
                file("sys/fs/cgroup/app/engine/memory.max", "max"),
                file("sys/fs/cgroup/app/engine/memory.current", GIB),
            ],
        );
        assert_eq!(pages(&root.0), Some(2 * GIB));
        // The group's own limit, and a limit that is exceeded already.
        std::fs::write(root.0.join("sys/fs/cgroup/app/engine/memory.high"), format!("{}", GIB + 5)).unwrap();
        assert_eq!(pages(&root.0), Some(5));
        std::fs::write(root.0.join("sys/fs/cgroup/app/memory.max"), "4096").unwrap();
        assert_eq!(pages(&root.0), Some(0));
    }

    #[test]
    fn what_this_process_has_mapped_is_not_reclaimable() {
        let root = Root::new(
            "mapped",
            &[
                meminfo(16),
                file("proc/self/status", "RssFile: 2097152 kB"),
                file("proc/self/cgroup", "0::/"),
                file("proc/self/mountinfo", MOUNT_V2),
                file("sys/fs/cgroup/memory.max", 8 * GIB),
                file("sys/fs/cgroup/memory.current", 4 * GIB),
                file("sys/fs/cgroup/memory.stat", format!("inactive_file {}", 3 * GIB)),
            ],
        );
        assert_eq!(pages(&root.0), Some(5 * GIB));
    }

    #[test]
    fn the_tightest_group_of_v1_decides() {
        let unlimited = 0x7fff_ffff_ffff_f000u64;
        let root = Root::new(
            "v1",
            &[
                meminfo(16),
                file("proc/self/cgroup", "9:name=systemd:/\n4:hugetlb,memory:/box/x:y\n1:cpu:/other\n0::/"),
                file(
                    "proc/self/mountinfo",
                    "31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
                     32 30 0:28 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory",
                ),
                file("sys/fs/cgroup/memory/memory.limit_in_bytes", unlimited),
                file("sys/fs/cgroup/memory/memory.usage_in_bytes", 5 * GIB),
                file("sys/fs/cgroup/memory/box/memory.limit_in_bytes", 6 * GIB),
                file("sys/fs/cgroup/memory/box/memory.usage_in_bytes", 3 * GIB),
                file(
                    "sys/fs/cgroup/memory/box/memory.stat",
                    format!("inactive_file 1\ntotal_inactive_file {GIB}"),
                ),
                file("sys/fs/cgroup/memory/box/x:y/memory.limit_in_bytes", 5 * GIB),
                file("sys/fs/cgroup/memory/box/x:y/memory.usage_in_bytes", 2 * GIB),
            ],
        );
        assert_eq!(pages(&root.0), Some(3 * GIB));
        std::fs::remove_dir_all(root.0.join("sys/fs/cgroup/memory/box/x:y")).unwrap();
        assert_eq!(pages(&root.0), Some(4 * GIB));
    }

    #[test]
    fn a_container_sees_its_own_group_at_the_mount_point() {
        // Without a namespace of its own, the paths are the host's, and the mount shows the container's part.
        let mount = "40 30 0:28 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        let files = |group: &str| {
            [
                meminfo(16),
                file("proc/self/cgroup", format!("4:memory:{group}")),
                file("proc/self/mountinfo", mount),
                file("sys/fs/cgroup/memory/memory.limit_in_bytes", 2 * GIB),
                file("sys/fs/cgroup/memory/memory.usage_in_bytes", GIB),
            ]
        };
        for (i, group) in
            ["/docker/abc", "/docker/abc/inner", "/", "/../../elsewhere"].into_iter().enumerate()
        {
            let root = Root::new(&format!("container{i}"), &files(group));
            assert_eq!(pages(&root.0), Some(GIB), "{group}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_says_what_it_has() {
        let total = kilobytes(Path::new("/"), "proc/meminfo", "MemTotal:").unwrap();
        let free = pages(Path::new("/")).unwrap();
        assert!(free < total, "{free} of {total}");
    }
}
