//! CPU use of the engine: none while it waits, and by default as many CPUs as the process may use, by its
//! affinity mask and by the quotas of its control groups.
#![cfg(target_os = "linux")] // /proc, affinity, control groups

use bn_engine::engine::Engine;
use bn_engine::engine::api::{EngineConfig, Event, FinishReason, Prompt, RequestParams, Which};
use std::io::Write;
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

/// State of each other thread, and how often it has left a CPU. A thread that sleeps with the same count has not run.
fn others() -> Vec<String> {
    // SAFETY: the call has no arguments and cannot fail.
    let own = unsafe { libc::gettid() }.to_string();
    let mut found = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").expect("threads").flatten() {
        // A thread may end in between.
        let Ok(status) = std::fs::read_to_string(task.path().join("status")) else { continue };
        if task.file_name().to_str() != Some(&own) {
            let facts =
                ["Name:", "Pid:", "State:", "voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"];
            let wanted = |line: &&str| facts.iter().any(|fact| line.starts_with(fact));
            found.push(status.lines().filter(wanted).collect::<Vec<_>>().join(" "));
        }
    }
    found.sort_unstable();
    found
}

/// An engine rests after its work, and also when it is paused in the middle of its requests.
fn idle() {
    let engine = engine(4);
    let request = RequestParams {
        prompt: Prompt::Tokens(vec![3, 5, 7].into()),
        max_new_tokens: 16,
        ignore_eos: true,
        ..RequestParams::default()
    };
    engine.submit(vec![request.clone(); 4]).expect("room");
    let mut ended = 0;
    while ended < 4 {
        let mut count = |_, event: &Event| ended += (event.finish != FinishReason::None) as usize;
        engine.poll(Which::Any, 64, None, &mut count).expect("events");
    }
    rest();
    engine.set_threads(2).expect("set");
    let endless = RequestParams { max_new_tokens: 0, ..request };
    engine.submit(vec![endless; 2]).expect("room");
    engine.poll(Which::Any, 64, None, &mut |_, _| ()).expect("events");
    engine.pause().expect("paused");
    assert_eq!((engine.stats().running, engine.stats().threads), (2, 2));
    rest();
    engine.destroy().expect("destroyed");
}

/// Waits until all other threads rest, and sees that they do for a second.
fn rest() {
    let after = |before: &Vec<String>, pause| {
        std::thread::sleep(pause);
        let now = others();
        (now == *before && now.iter().all(|thread| thread.contains("State:\tS")), now)
    };
    let (mut rests, mut threads, mut tries) = (false, others(), 0);
    while !rests {
        (rests, threads) = after(&threads, Duration::from_millis(100));
        tries += 1;
        assert!(tries < 600, "no rest in a minute: {threads:#?}");
    }
    assert!(threads.len() > 4, "the engine's are among them: {threads:#?}");
    let (rests, now) = after(&threads, Duration::from_secs(1));
    assert!(rests, "{threads:#?} ran: {now:#?}");
}

/// Runs on a thread that may use only one CPU, a limit that new threads inherit.
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

/// One test: it counts the process's threads and watches them.
#[test]
fn idle_engines_take_no_cpu_and_the_mask_counts() {
    idle();
    let all = std::thread::available_parallelism().expect("CPUs").get();
    assert_eq!(default_threads(), all.min(256));
    assert_eq!(default_threads_on_one_cpu(), 1);
    quotas(all);
}

#[test]
#[ignore = "runs under the quotas of the test beside it"]
fn child() {
    println!("threads: {}", default_threads());
}

/// Runs `script` in namespaces of its own, in which /proc/$$/cgroup is `group` and /sys/fs/cgroup has only the files
/// that the script makes. Returns its output, or its error message.
fn in_namespaces(group: &str, script: &str) -> Result<String, String> {
    let mut own = format!("mount -t tmpfs none /sys/fs/cgroup && echo '{group}' > /sys/fs/cgroup/self");
    own += " && mount --bind /sys/fs/cgroup/self /proc/$$/cgroup";
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount", "sh", "-c", &format!("{own}{script}")])
        .arg(std::env::current_exe().expect("this test"))
        .output()
        .map_err(|error| format!("unshare: {error}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

/// Default threads of a process that finds `files` under /sys/fs/cgroup, and itself in `group`.
fn threads_in(group: &str, files: &[(&str, &str)]) -> usize {
    let mut script = String::new();
    for (path, text) in files {
        let path = format!("/sys/fs/cgroup/{path}");
        script += &format!(" && mkdir -p $(dirname {path}) && echo '{text}' > {path}");
    }
    script += " && exec \"$0\" --exact child --ignored --nocapture";
    let text = in_namespaces(group, &script).expect("the child's output");
    let count = text.lines().find_map(|line| line.split_once("threads: ")?.1.trim().parse().ok());
    count.unwrap_or_else(|| panic!("no count in: {text}"))
}

fn quotas(all: usize) {
    if let Err(why) = in_namespaces("0::/", "") {
        // Not with println, whose line the test would capture and lose.
        let _ = writeln!(std::io::stderr(), "skipped: quotas of control groups, without namespaces: {why}");
        return;
    }
    let max = ("a/cpu.max", "max 100000");
    let v2 =
        [("cgroup.controllers", "cpu"), ("a/cgroup.controllers", "cpu"), ("a/b/cgroup.controllers", "cpu")];
    let with = |files: &[(&'static str, &'static str)]| [&v2[..], files].concat();
    assert_eq!(threads_in("0::/a/b", &with(&[max, ("a/b/cpu.max", "max 100000")])), all, "no quota");
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
        assert_eq!(threads_in(group, &files), 1, "{what}");
    }
}
