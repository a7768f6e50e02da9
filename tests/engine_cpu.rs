//! Which CPUs the engine takes: none while it waits, and by default as many as the process may use, by its affinity mask
//! and by the quotas of its control groups.

use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, Event, FinishReason, Prompt, RequestParams, Which};
use std::process::Command;
use std::time::Duration;

fn engine(threads: u32) -> Engine {
    Engine::create(EngineConfig { threads, ..EngineConfig::default() }).expect("an engine")
}

/// Threads that compute: the workers and the engine's own.
fn computing() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .expect("threads")
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    1 + names.filter(|name| name.starts_with("bn-worker")).count()
}

fn default_threads() -> usize {
    let engine = engine(0);
    let threads = computing();
    engine.destroy().expect("destroyed");
    threads
}

/// CPU time of this process so far.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes to `time` and keeps nothing.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// CPU time of a second in which an engine that has worked waits.
fn idle() -> Duration {
    let engine = engine(4);
    let request = RequestParams {
        prompt: Prompt::Tokens(vec![3, 5, 7].into()),
        max_new_tokens: 16,
        ignore_eos: true,
        ..RequestParams::default()
    };
    engine.submit(vec![request; 4]).expect("room");
    let mut ended = 0;
    while ended < 4 {
        let mut count = |_, event: &Event| ended += (event.finish != FinishReason::None) as usize;
        engine.poll(Which::Any, 64, None, &mut count).expect("events");
    }
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_time();
    std::thread::sleep(Duration::from_secs(1));
    let taken = cpu_time() - before;
    engine.destroy().expect("destroyed");
    taken
}

/// On a thread that may run on one CPU only, which its threads inherit.
fn default_threads_on_one_cpu() -> usize {
    let narrowed = std::thread::spawn(|| {
        // SAFETY: a set of CPUs is plain data; the calls read and write `set` and keep nothing.
        unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            assert_eq!(libc::sched_getaffinity(0, size_of_val(&set), &mut set), 0);
            let first = (0..libc::CPU_SETSIZE as usize).find(|cpu| libc::CPU_ISSET(*cpu, &set));
            libc::CPU_ZERO(&mut set);
            libc::CPU_SET(first.expect("a CPU"), &mut set);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&set), &set), 0);
        }
        default_threads()
    });
    narrowed.join().expect("no panic")
}

/// One test: it counts the process's threads and time.
#[test]
fn idle_engines_take_no_cpu_and_the_mask_counts() {
    if std::env::var_os(CHILD).is_some() {
        return;
    }
    let taken = idle();
    assert!(taken < Duration::from_millis(10), "{taken:?} of CPU time in an idle second");
    let all = std::thread::available_parallelism().expect("CPUs").get();
    assert_eq!(default_threads(), all.min(256));
    assert_eq!(default_threads_on_one_cpu(), 1);
    quotas(all);
}

const CHILD: &str = "BN_TEST_COUNT_THREADS";

/// Not a test by itself: what the processes under a quota run.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        println!("threads: {}", default_threads());
    }
}

/// Default threads of a process that finds `files` under /sys/fs/cgroup, and itself in `group`, in namespaces of
/// its own; None where the system does not let us make them.
fn threads_in(group: &str, files: &[(&str, &str)]) -> Option<usize> {
    let mut script = format!("mount -t tmpfs none /sys/fs/cgroup && echo '{group}' > /sys/fs/cgroup/self");
    script += " && mount --bind /sys/fs/cgroup/self /proc/$$/cgroup";
    for (path, text) in files {
        let path = format!("/sys/fs/cgroup/{path}");
        script += &format!(" && mkdir -p $(dirname {path}) && echo '{text}' > {path}");
    }
    script += " && exec \"$0\" --exact child --nocapture";
    let exe = std::env::current_exe().expect("this test");
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &script])
        .arg(exe)
        .env(CHILD, "1")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let count = text.lines().find_map(|line| line.split_once("threads: ")?.1.trim().parse().ok());
    if count.is_none() {
        println!("no namespaces here: {}", String::from_utf8_lossy(&output.stderr));
    }
    count
}

fn quotas(all: usize) {
    let max = ("a/cpu.max", "max 100000");
    let v2 =
        [("cgroup.controllers", "cpu"), ("a/cgroup.controllers", "cpu"), ("a/b/cgroup.controllers", "cpu")];
    let with = |files: &[(&'static str, &'static str)]| [&v2[..], files].concat();
    let Some(free) = threads_in("0::/a/b", &with(&[max, ("a/b/cpu.max", "max 100000")])) else { return };
    assert_eq!(free, all, "no quota");
    for (what, group, files) in [
        ("v2", "0::/a/b", with(&[max, ("a/b/cpu.max", "100000 100000")])),
        (
            "v2, one and a half CPUs above",
            "0::/a/b",
            with(&[("a/cpu.max", "150000 100000"), ("a/b/cpu.max", "max 100000")]),
        ),
        ("v2, less than a CPU", "0::/a/b", with(&[max, ("a/b/cpu.max", "20000 100000")])),
        (
            "v1, above",
            "4:cpuacct,cpu:/a/b",
            vec![
                ("cpu,cpuacct/a/cpu.cfs_quota_us", "100000"),
                ("cpu,cpuacct/a/cpu.cfs_period_us", "100000"),
                ("cpu,cpuacct/a/b/cpu.cfs_quota_us", "-1"),
                ("cpu,cpuacct/a/b/cpu.cfs_period_us", "100000"),
            ],
        ),
        (
            "v1",
            "7:memory:/\n3:cpu:/b",
            vec![("cpu/b/cpu.cfs_quota_us", "50000"), ("cpu/b/cpu.cfs_period_us", "50000")],
        ),
    ] {
        assert_eq!(threads_in(group, &files), Some(1), "{what}");
    }
}
