//! Every interleaving of submits, polls, the engine thread's exchange and the wake protocol, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test --lib --release loom`.

use super::support::*;
use super::*;
use loom::thread;
use std::collections::VecDeque;
use std::time::Duration;

/// Polls until the terminal event and returns the text.
fn drain(hub: &TestHub, which: Which) -> String {
    let (mut text, mut last) = (String::new(), false);
    while !last {
        hub.poll(which, 1, None, &mut |_, e| (text, last) = (format!("{text}{}", e.text), e.last)).unwrap();
    }
    text
}

#[test]
fn loom_no_event_and_no_wakeup_is_lost() {
    for by_id in [false, true] {
        loom::model(move || {
            let hub = hub(4);
            let id = open(&hub, by_id);
            let publisher = {
                let hub = hub.clone();
                thread::spawn(move || {
                    publish(&hub, id, "1", false);
                    publish(&hub, id, "2", true);
                })
            };
            let which = if by_id { Which::One(id) } else { Which::Any };
            assert_eq!(drain(&hub, which), "12");
            publisher.join().unwrap();
            assert!(!readable(&hub));
        });
    }
}

#[test]
fn loom_two_pollers_share_two_events() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let hub = hub(4);
        let (a, b) = (open(&hub, false), open(&hub, false));
        let pollers: Vec<_> = (0..2)
            .map(|_| {
                let hub = hub.clone();
                thread::spawn(move || {
                    let mut got = String::new();
                    hub.poll(Which::Any, 1, None, &mut |_, e| got = e.text.clone()).unwrap();
                    got
                })
            })
            .collect();
        exchange(&hub, &[(a, "1", true), (b, "2", true)], Rest::None);
        let mut got: Vec<_> = pollers.into_iter().map(|p| p.join().unwrap()).collect();
        got.sort();
        assert_eq!(got, ["1", "2"]);
    });
}

#[test]
fn loom_release_races_with_the_terminal_event() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, false);
        let publisher = {
            let hub = hub.clone();
            thread::spawn(move || publish(&hub, id, "1", true))
        };
        hub.release(id).unwrap();
        publisher.join().unwrap();
        assert_eq!(hub.usage().unreleased, 0, "the slot is free whoever came first");
        assert!(hub.stage(id).is_err());
        assert!(!readable(&hub));
    });
}

#[test]
fn loom_destroy_waits_for_a_poller_and_frees_it() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, true);
        let poller = {
            let hub = hub.clone();
            thread::spawn(move || hub.poll(Which::One(id), 1, None, &mut |_, _| ()).is_err())
        };
        hub.destroy();
        assert!(poller.join().unwrap());
    });
}

#[test]
fn loom_a_taker_sees_the_last_event_before_the_end() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, false);
        let taker = {
            let hub = hub.clone();
            thread::spawn(move || {
                let mut all = String::new();
                hub.deliver(&mut |event| all.push_str(&event.text));
                assert_eq!(
                    hub.release(id).unwrap_err().status,
                    Status::NotFound,
                    "its last event released it"
                );
                all
            })
        };
        publish(&hub, id, "5", true);
        hub.advance(Phase::Drained, false);
        assert_eq!(taker.join().unwrap(), "5");
    });
}

#[test]
fn loom_no_command_and_no_wakeup_of_the_engine_is_lost() {
    loom::model(|| {
        let hub = hub(4);
        let submitters: Vec<_> = (0..2)
            .map(|_| {
                let hub = hub.clone();
                thread::spawn(move || open(&hub, false))
            })
            .collect();
        let mut seen = 0;
        while seen < 2 {
            let (goes_on, commands) = exchange(&hub, &[], Rest::UntilCommand);
            assert!(goes_on && !commands.is_empty(), "woken for nothing");
            seen += commands.len();
        }
        for submitter in submitters {
            submitter.join().unwrap();
        }
    });
}

/// A replica sleeps while its request waits for a refused grant, until set-aside bytes are returned.
#[test]
fn loom_bytes_that_come_back_wake_who_was_refused() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, false);
        exchange(&hub, &[], Rest::None);
        let aside = hub.set_aside(600).unwrap();
        let host = {
            let hub = hub.clone();
            thread::spawn(move || {
                drop(aside);
                hub.usage();
            })
        };
        while !hub.grant(id.slot(), 700, true) {
            let mut out = Outbox::default();
            hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::UntilCommand);
            assert!(out.retry_grants, "woken for nothing");
        }
        host.join().unwrap();
    });
}

#[test]
fn loom_a_drain_ends_the_engine_once_every_request_has_finished() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let hub = hub(4);
        let host = {
            let hub = hub.clone();
            thread::spawn(move || {
                let accepted = submit(&hub, &[(false, 10)]).is_ok();
                hub.advance(Phase::Closing, false);
                accepted
            })
        };
        let mut finished = 0;
        loop {
            let (goes_on, commands) = exchange(&hub, &[], Rest::UntilCommand);
            if !goes_on {
                break;
            }
            for command in commands {
                let Command::Start(Parcel(id)) = command else { panic!("{command:?}") };
                publish(&hub, id, "1", true);
                finished += 1;
            }
        }
        assert_eq!(finished, host.join().unwrap() as usize);
        assert_eq!(submit(&hub, &[(false, 10)]).unwrap_err().status, Status::Shutdown);
    });
}

#[test]
fn loom_a_cancel_is_seen_within_the_pass_or_after_it() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, false);
        assert_eq!(exchange(&hub, &[], Rest::UntilCommand).1, [Command::Start(Parcel(id))]);
        let host = {
            let hub = hub.clone();
            thread::spawn(move || hub.cancel(Which::One(id)).unwrap())
        };
        let mut within = false;
        hub.ends(0, &mut |which| within |= which == Some(id));
        host.join().unwrap();
        let mut later = false;
        hub.ends(0, &mut |which| later |= which == Some(id));
        assert!(within != later, "seen once");
        assert_eq!(exchange(&hub, &[], Rest::UntilCommand).1, [Command::End(id)]);
    });
}

/// An edge-triggered loop polls with room to spare when it is woken, and then waits for the next edge.
#[test]
fn loom_the_end_wakes_an_edge_triggered_loop_that_stopped_at_a_short_count() {
    loom::model(|| {
        let hub = hub(4);
        let id = open(&hub, false);
        let engine = {
            let hub = hub.clone();
            thread::spawn(move || {
                publish(&hub, id, "1", true);
                hub.advance(Phase::Drained, false);
            })
        };
        let mut seen = 0;
        loop {
            let now = edges(&hub);
            if now == seen {
                thread::yield_now();
                continue;
            }
            seen = now;
            match hub.poll(Which::Any, 8, Some(Duration::ZERO), &mut |_, _| ()) {
                Ok(_) => {}
                Err(error) => break assert_eq!(error.status, Status::Shutdown),
            }
        }
        engine.join().unwrap();
    });
}

/// Replica 1 fails and hands a request on to replica 0 while the host cancels it. The replica that has it in the end
/// must learn of the cancel.
#[test]
fn loom_a_cancel_finds_a_request_that_is_moved() {
    loom::model(|| {
        let hub = hub_of(4, 2);
        let [_, id] = [open(&hub, false), open(&hub, false)];
        assert_eq!(
            exchange_of(&hub, 1, Outbox::default(), Rest::UntilCommand).1,
            [Command::Start(Parcel(id))]
        );
        exchange(&hub, &[], Rest::UntilCommand);
        let host = {
            let hub = hub.clone();
            thread::spawn(move || hub.cancel(Which::One(id)).unwrap())
        };
        let mut out = Outbox::default();
        out.share.load.sick = true;
        out.share.handed_on.push((id, Parcel(id)));
        let told = exchange_of(&hub, 1, out, Rest::None).1;
        let mut seen = Vec::new();
        while seen.len() < 2 {
            seen.extend(exchange(&hub, &[], Rest::UntilCommand).1);
        }
        assert_eq!(seen, [Command::Start(Parcel(id)), Command::End(id)]);
        host.join().unwrap();
        assert!(told.iter().all(|command| *command == Command::End(id)), "for whom it is no more");
    });
}

/// The replica that had the last request wakes the other one, which sleeps, at the end.
#[test]
fn loom_all_replicas_end_with_the_last_request() {
    loom::model(|| {
        let hub = hub_of(4, 2);
        let id = open(&hub, false);
        hub.advance(Phase::Closing, false);
        let other = {
            let hub = hub.clone();
            thread::spawn(move || {
                assert!(!exchange_of(&hub, 1, Outbox::default(), Rest::UntilCommand).0);
                hub.part(1, false);
            })
        };
        assert_eq!(exchange(&hub, &[], Rest::UntilCommand).1, [Command::Start(Parcel(id))]);
        assert!(!exchange(&hub, &[(id, "1", true)], Rest::UntilCommand).0);
        hub.part(0, false);
        other.join().unwrap();
        assert_eq!(hub.phase(), Phase::Drained);
    });
}

/// Acts as an engine thread: cancels started requests when told to end them, until nothing is left to do.
fn run_engine(hub: &TestHub) {
    let mut live = Vec::new();
    let mut events: Vec<(RequestId, &str, bool)> = Vec::new();
    loop {
        let rest = if events.is_empty() { Rest::UntilCommand } else { Rest::None };
        let (goes_on, commands) = exchange(hub, &std::mem::take(&mut events), rest);
        if !goes_on {
            return hub.part(0, false);
        }
        for command in commands {
            let ends = |id: &RequestId| match &command {
                Command::End(ended) => ended == id,
                Command::EndAll { .. } => true,
                _ => false,
            };
            events.extend(live.extract_if(.., |id| ends(id)).map(|id| (id, "x", true)));
            if let Command::Start(Parcel(id)) = command {
                live.push(id);
            }
        }
    }
}

/// `Engine::shutdown` with a cancel, followed by `Engine::destroy`.
fn shut_down_and_destroy(hub: &TestHub, threads: Vec<thread::JoinHandle<()>>) {
    hub.advance(Phase::Closing, true);
    hub.leave_all();
    hub.advance(Phase::Closing, true);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    hub.destroy();
}

/// A submit during shutdown and destroy is refused, or gets exactly one last callback; none only if the
/// caller released the request.
#[test]
fn loom_destroy_makes_the_last_callback_of_each_accepted_request() {
    for releases in [false, true] {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let hub = hub(4);
            let calls = Arc::new(AtomicU64::new(0));
            let engine = {
                let hub = hub.clone();
                thread::spawn(move || run_engine(&hub))
            };
            let delivery = {
                let (hub, calls) = (hub.clone(), calls.clone());
                thread::spawn(move || {
                    hub.deliver(&mut |event| {
                        assert!(event.last);
                        calls.fetch_add(1, Ordering::SeqCst);
                    })
                })
            };
            let host = {
                let hub = hub.clone();
                thread::spawn(move || match submit(&hub, &[(false, 10)]) {
                    Ok(ids) => (1, u64::from(releases && hub.release(ids[0]).is_ok())),
                    Err(error) => {
                        assert_eq!(error.status, Status::Shutdown);
                        (0, 0)
                    }
                })
            };
            shut_down_and_destroy(&hub, vec![engine, delivery]);
            let (accepted, released) = host.join().unwrap();
            let calls = calls.load(Ordering::SeqCst);
            assert!(
                calls <= accepted && calls + released >= accepted,
                "{calls} of {accepted}, {released} released"
            );
        });
    }
}

/// As in `Engine::generate`: a caller whose request was accepted gets its terminal event, even if the engine is
/// destroyed before the caller waits.
#[test]
fn loom_destroy_leaves_a_waiting_caller_its_answer() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let hub = hub(4);
        let engine = {
            let hub = hub.clone();
            thread::spawn(move || run_engine(&hub))
        };
        let caller = {
            let hub = hub.clone();
            thread::spawn(move || {
                let _stay = hub.stay();
                let Ok(ids) = submit(&hub, &[(true, 10)]) else { return };
                assert!(hub.take_one(ids[0]).unwrap().last);
                hub.release(ids[0]).unwrap();
            })
        };
        shut_down_and_destroy(&hub, vec![engine]);
        caller.join().unwrap();
    });
}

#[test]
fn loom_a_hold_reaches_a_thread_that_goes_to_sleep() {
    loom::model(|| {
        let hub = hub(4);
        let holder = {
            let hub = hub.clone();
            thread::spawn(move || hub.hold(true).unwrap())
        };
        let mut out = Outbox::default();
        assert!(hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::UntilCommand) && out.held);
        assert!(!holder.join().unwrap());
    });
}
