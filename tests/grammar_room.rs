//! Grammars in a process with little address space left (`ulimit -v`): each is refused or compiled, and
//! nothing aborts. Each limit is tested in a process of its own.
#![cfg(target_os = "linux")] // Windows limits committed memory, not addresses

mod engine_support;

use bn_engine::base::Status;
use bn_engine::engine::api::{Constraint, ConstraintKind, JsonOptions};
use engine_support::demo;
use std::process::Command;

const ROOM: &str = "BN_TEST_ROOM_MIB";

fn grammars() -> Vec<(ConstraintKind, String)> {
    use ConstraintKind::{Gbnf, JsonSchema, Lark, Regex};
    let many = |n: usize, one: &dyn Fn(usize) -> String, between: &str| {
        (0..n).map(one).collect::<Vec<_>>().join(between)
    };
    let patterns = many(200, &|n| format!("\"^(a|b)*x{n}$\":true"), ",");
    let names = many(2500, &|n| format!("\"p{n}\":{{\"type\":\"string\",\"maxLength\":{n}}}"), ",");
    vec![
        (Regex, "[a-z]+".into()),
        (JsonSchema, "{\"type\":\"object\"}".into()),
        (Regex, "a?".repeat(9000)),
        (Regex, r"(?i)\p{L}".repeat(2000)),
        (Regex, many(60_000, &|n| format!("w{n}"), "|")),
        (JsonSchema, format!("{{\"patternProperties\":{{{patterns}}}}}")),
        (JsonSchema, format!("{{\"properties\":{{{names}}}}}")),
        (JsonSchema, format!("{{\"enum\":[{}]}}", many(40_000, &|n| format!("\"v{n}\""), ","))),
        (Lark, format!("start: {}", many(30_000, &|n| format!("\"w{n}\""), " | "))),
        (Lark, format!("start: {}\na: \"x\"", "a ".repeat(150_000))),
        (Gbnf, "root ::= \"[\" (root (\",\" root)*)? \"]\"".into()),
    ]
}

fn limit(mib: u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let used = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    let used: u64 = used.trim().trim_end_matches(" kB").parse().unwrap();
    let bytes = (used << 10) + (mib << 20);
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: `limit` is a whole struct.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
}

/// Reports how many were compiled and refused.
fn child(mib: u64) {
    let engine = demo(|config| config.threads = 2);
    limit(mib);
    let (mut compiled, mut refused) = (0, 0);
    for (kind, text) in grammars() {
        match engine.check_constraint(&Constraint {
            kind,
            text: text.as_str().into(),
            json: JsonOptions::default(),
        }) {
            Ok(()) => compiled += 1,
            Err(error) => {
                let known = [Status::OutOfMemory, Status::InvalidArgument];
                assert!(known.contains(&error.status), "{error}");
                refused += 1;
            }
        }
    }
    println!("{mib}: {compiled} compiled, {refused} refused");
    drop(engine);
}

#[test]
fn few_addresses_refuse_grammars_and_abort_nothing() {
    if let Ok(mib) = std::env::var(ROOM) {
        return child(mib.parse().unwrap());
    }
    let mut most = 0;
    for mib in [8, 60, 200, 280, 300, 330, 380, 450, 600, 1000] {
        let own = std::env::current_exe().unwrap();
        let run = Command::new(own).args(["--nocapture"]).env(ROOM, mib.to_string()).output().unwrap();
        let said = String::from_utf8_lossy(&run.stdout).into_owned();
        let shown = format!("{mib} MiB: {}\n{said}\n{}", run.status, String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{shown}");
        let compiled = said.split_once(&format!("{mib}: ")).and_then(|(_, rest)| rest.split(' ').next());
        let compiled: usize = compiled.and_then(|n| n.parse().ok()).unwrap_or_else(|| panic!("{shown}"));
        // A thread's stack alone takes 256 MiB.
        assert!(mib > 256 || compiled == 0, "{shown}");
        assert!(mib < 1000 || compiled >= 3, "{shown}");
        most = most.max(compiled);
    }
    assert!(most >= 3, "{most} are compiled with a gibibyte");
}
