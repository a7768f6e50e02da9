//! Many requests of many tasks.
use crate::support::{ECHO, eventually, open_with};
use bn::{FinishReason, Request};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const TASKS: usize = 64;
const REQUESTS: usize = 10_000;

/// Each stream is read to its end, cancelled, or dropped; none gets the output of another.
#[test]
fn ten_thousand_requests_of_64_tasks() {
    let engine =
        open_with(ECHO, |options| (options.max_batch_size, options.queue_capacity) = (TASKS as u32, 4096));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).build().unwrap();
    let (read, cancelled) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let (engine, read, cancelled) = (engine.clone(), read.clone(), cancelled.clone());
            runtime.spawn(async move {
                for number in (task..REQUESTS).step_by(TASKS) {
                    let text = format!("text {number}");
                    let request = Request { user_data: number as u64, ..Request::prompt(text.as_str()) };
                    let mut stream = engine.submit(&request).unwrap();
                    match number % 8 {
                        0 => drop(stream),
                        1 => {
                            let event = stream.next().await.unwrap();
                            assert!(text.starts_with(&event.text));
                        }
                        2 => {
                            stream.cancel();
                            let answer = stream.finish().await;
                            assert!(text.starts_with(&answer.text));
                            let reason = answer.finish.reason;
                            assert!(
                                matches!(reason, FinishReason::Cancelled | FinishReason::Stop),
                                "{reason}"
                            );
                            cancelled.fetch_add(1, Ordering::Relaxed);
                        }
                        _ => {
                            let answer = stream.finish().await;
                            assert_eq!((answer.text, answer.user_data), (text, number as u64));
                            read.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    runtime.block_on(async {
        for task in tasks {
            task.await.unwrap();
        }
    });
    assert_eq!(
        (read.load(Ordering::Relaxed), cancelled.load(Ordering::Relaxed)),
        (REQUESTS / 8 * 5, REQUESTS / 8)
    );
    eventually(|| engine.stats().unwrap().unreleased == 0);
    let stats = engine.stats().unwrap();
    assert_eq!((stats.accepted, stats.running, stats.queued), (REQUESTS as u64, 0, 0));
}

/// A stream needs no thread: one that this test or the package made would have this test's name.
#[test]
#[cfg(target_os = "linux")]
fn streams_need_no_threads() {
    let engine = open_with(crate::support::SLOW, |options| options.max_batch_size = 256);
    let named = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.ok()?.path().join("comm")).ok()
        };
        tasks.filter_map(name).filter(|name| name.starts_with("many::streams_n")).count()
    };
    let streams: Vec<_> = (0..200).map(|_| engine.submit(&crate::support::endless()).unwrap()).collect();
    for mut stream in streams {
        stream.recv().unwrap();
    }
    assert_eq!(named(), 1);
}
