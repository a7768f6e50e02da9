use super::ids::LAST_GENERATION;
use super::slots::lease_bytes;
use super::support::*;
use super::*;
use std::cell::Cell;
use std::collections::VecDeque;
use std::thread;
use std::time::Duration;

/// Polls, gives the events back, and returns the texts.
fn poll(hub: &TestHub, which: Which) -> Result<Vec<String>> {
    let (mut out, mut leases) = (Vec::new(), Vec::new());
    hub.poll(which, 8, Some(Duration::ZERO), &mut |lease, e| {
        out.push(e.text.clone());
        leases.push(lease);
    })?;
    if let Which::One(id) = which {
        hub.give_back(&mut leases.into_iter().map(|lease| (id, lease)));
    }
    Ok(out)
}

fn status<T>(result: Result<T>) -> Option<Status> {
    result.err().map(|error| error.status)
}

#[test]
fn undelivered_events_of_a_request_become_one_in_order() {
    let hub = hub(4);
    let (a, b) = (open(&hub, false), open(&hub, false));
    publish(&hub, a, "one ", false);
    publish(&hub, b, "b", true);
    publish(&hub, a, "two", true);
    assert!(readable(&hub));
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["one two", "b"]);
    assert!(!readable(&hub));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    assert_eq!(status(poll(&hub, Which::One(a))), Some(Status::Finished), "nothing will ever come");
}

#[test]
fn ids_are_refused_once_released_reused_or_foreign() {
    let hub = hub(1);
    let first = open(&hub, false);
    assert_eq!(status(submit(&hub, &[(false, 10)])), Some(Status::QueueFull));
    publish(&hub, first, "x", true);
    hub.release(first).unwrap();
    let second = open(&hub, false);
    assert_eq!(first.slot(), second.slot());
    for id in
        [first, RequestId(0), RequestId(u64::MAX), RequestId::new(8, second.generation(), second.slot())]
    {
        assert_eq!(status(hub.stage(id)), Some(Status::NotFound));
        assert_eq!(status(poll(&hub, Which::One(id))), Some(Status::NotFound));
        assert_eq!(status(hub.release(id)), Some(Status::NotFound));
        assert_eq!(status(hub.cancel(Which::One(id))), Some(Status::NotFound));
    }
    assert_eq!(hub.stage(second).unwrap(), Stage::Queued(0));
}

#[test]
fn a_live_release_drops_events_and_frees_the_slot_at_the_terminal_one() {
    let hub = hub(1);
    let id = open(&hub, false);
    publish(&hub, id, "unread", false);
    hub.release(id).unwrap();
    assert!(!readable(&hub));
    assert_eq!(hub.lost(0), [(id, 5)]);
    assert_eq!(status(submit(&hub, &[(false, 0)])), Some(Status::QueueFull));
    let told = publish(&hub, id, "late", true);
    assert_eq!(told, [Command::End(id)], "the engine is told once");
    let Usage { unreleased, reserved, reserved_peak, .. } = hub.usage();
    assert_eq!((unreleased, reserved, reserved_peak), (0, 0, 10));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    open(&hub, false);
}

#[test]
fn poll_by_id_is_out_of_anys_reach() {
    let hub = hub(2);
    let mine = open(&hub, true);
    publish(&hub, mine, "m", false);
    assert!(!readable(&hub));
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
    assert_eq!(poll(&hub, Which::One(mine)).unwrap(), ["m"]);
}

#[test]
fn a_request_polled_by_its_id_leaves_no_trace_in_the_any_queue() {
    let hub = hub(2);
    let id = open(&hub, false);
    publish(&hub, id, "1", false);
    assert_eq!(poll(&hub, Which::One(id)).unwrap(), ["1"]);
    assert!(!readable(&hub));
    publish(&hub, id, "2", false);
    assert!(readable(&hub));
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["2"]);
    assert!(poll(&hub, Which::Any).unwrap().is_empty());
}

#[test]
fn the_byte_budget_is_all_or_nothing() {
    let hub = hub(8);
    let leaves = |left, wanted: &[(bool, u64)]| {
        let error = submit(&hub, wanted).unwrap_err();
        let says = format!("leaves {} of", left + lease_bytes::<Note>());
        assert!(error.status == Status::MemoryLimit && error.message.contains(&says), "{error}");
    };
    leaves(1000, &[(false, 600), (false, 600)]);
    let id = submit(&hub, &[(false, 600)]).unwrap()[0];
    leaves(400, &[(false, 600)]);
    publish(&hub, id, "", true);
    hub.release(id).unwrap();
    submit(&hub, &[(false, 600)]).unwrap();
}

/// Only requests that wait for admission count. If none waits, a request may have any length.
#[test]
fn queued_tokens_are_bounded() {
    let hub = hub(8);
    let submit = |tokens: &[u64]| {
        let info =
            |&prompt_tokens| (RequestInfo { prompt_tokens, ..RequestInfo::default() }, Parcel(RequestId(0)));
        let mut ids = Vec::new();
        hub.submit(&mut tokens.iter().map(info).collect(), &mut ids).map(|()| ids)
    };
    let queued = || hub.usage().queued_tokens;
    let long = submit(&[70, 80]).unwrap();
    let error = submit(&[1]).unwrap_err();
    assert!(error.message.starts_with("150 of 100 prompt tokens (queue_token_capacity)"), "{error}");
    let mut out = Outbox { admitted: vec![long[0].slot()], ..Outbox::default() };
    hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::None);
    assert_eq!(queued(), 80);
    assert_eq!(status(submit(&[10, 11])), Some(Status::QueueFull));
    let more = submit(&[10, 10]).unwrap();
    assert_eq!(queued(), 100);
    for id in [long[0], long[1], more[0]] {
        publish(&hub, id, "", true);
    }
    assert_eq!(queued(), 10);
    hub.release(more[1]).unwrap();
    assert_eq!(queued(), 10, "it waits until the engine ends it");
    publish(&hub, more[1], "", true);
    assert_eq!((queued(), hub.usage().running), (0, 0));
}

#[test]
fn a_second_poller_of_one_id_is_told_so() {
    let hub = hub(2);
    let id = open(&hub, true);
    let waiting = {
        let hub = hub.clone();
        thread::spawn(move || {
            let mut text = String::new();
            hub.poll(Which::One(id), 1, None, &mut |_, e| text = e.text.clone()).unwrap();
            text
        })
    };
    while hub.state.lock().pollers == 0 {
        thread::yield_now();
    }
    assert_eq!(status(poll(&hub, Which::One(id))), Some(Status::Busy));
    publish(&hub, id, "done", true);
    assert_eq!(waiting.join().unwrap(), "done");
}

#[test]
fn destroy_waits_for_blocked_pollers() {
    let hub = hub(2);
    let id = open(&hub, true);
    let pollers: Vec<_> = [Which::Any, Which::One(id)]
        .into_iter()
        .map(|which| {
            let hub = hub.clone();
            thread::spawn(move || hub.poll(which, 1, None, &mut |_, _| ()).unwrap_err().status)
        })
        .collect();
    while hub.state.lock().pollers < 2 {
        thread::yield_now();
    }
    hub.destroy();
    assert!(readable(&hub));
    for poller in pollers {
        assert_eq!(poller.join().unwrap(), Status::Shutdown);
    }
    assert_eq!(status(submit(&hub, &[(false, 0)])), Some(Status::Shutdown));
}

#[test]
fn a_poller_takes_no_event_out_of_a_hub_that_is_destroyed() {
    let hub = hub(2);
    let id = open(&hub, false);
    publish(&hub, id, "late", true);
    hub.leave_all();
    for which in [Which::Any, Which::One(id)] {
        assert_eq!(status(poll(&hub, which)), Some(Status::Shutdown));
    }
    assert_eq!(hub.take_one(id).unwrap().text, "late", "who owns what it takes may have it");
}

#[test]
fn a_drained_hub_gives_what_is_left_and_then_says_so() {
    let hub = hub(2);
    let id = open(&hub, false);
    publish(&hub, id, "last", true);
    hub.advance(Phase::Drained, false);
    let before = edges(&hub);
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["last"]);
    assert!(readable(&hub), "an event loop has to learn of the end");
    assert!(edges(&hub) > before, "so has one that waits for an edge");
    assert_eq!(status(poll(&hub, Which::Any)), Some(Status::Shutdown));
}

/// A leased event must not move or change while other events come and go, its own request's included.
#[test]
fn an_event_stays_until_it_is_given_back() {
    let hub = hub(300);
    let id = open(&hub, false);
    publish(&hub, id, "stay", false);
    let seen = Cell::new((std::ptr::null(), 0, 0));
    hub.poll(Which::Any, 1, None, &mut |lease, e| seen.set((e.text.as_ptr(), e.text.len(), lease))).unwrap();
    let (at, len, lease) = seen.get();
    for _ in 0..200 {
        let other = open(&hub, false);
        publish(&hub, other, "other", true);
        hub.poll(Which::One(other), 1, None, &mut |_, _| ()).unwrap();
        hub.release(other).unwrap();
    }
    // SAFETY: the hub promises that the event is untouched: it was not given back.
    assert_eq!(unsafe { std::slice::from_raw_parts(at, len) }, b"stay");
    for (request, name) in [(id, lease), (id, lease), (id, 0), (id, u64::MAX), (RequestId(0), lease)] {
        hub.give_back(&mut [(request, name)].into_iter());
        assert_eq!(hub.usage().reserved, 10, "an invented or old lease frees nothing");
    }
}

#[test]
fn events_that_nobody_gives_back_are_bounded_and_end_with_their_request() {
    let hub = hub(3);
    let [a, b] = [open(&hub, false), open(&hub, false)];
    // The reservation of a request covers its first event.
    let budget = 2 + (1000 + lease_bytes::<Note>() - 20) / lease_bytes::<Note>();
    let mut leases = Vec::new();
    for n in 0..budget {
        publish(&hub, if n % 3 == 0 { b } else { a }, "x", false);
        hub.poll(Which::Any, 8, Some(Duration::ZERO), &mut |lease, _| leases.push(lease)).unwrap();
    }
    assert_eq!(leases.len() as u64, budget);
    publish(&hub, a, "y", false);
    assert_eq!(status(poll(&hub, Which::Any)), Some(Status::MemoryLimit));
    let before = edges(&hub);
    // Give events back from the middle of the list, then from its ends.
    for n in [2, 0, leases.len() - 1] {
        hub.give_back(&mut [a, b].map(|id| (id, leases[n])).into_iter());
    }
    assert!(edges(&hub) > before, "a loop that stopped at the error is woken");
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["y"]);
    publish(&hub, a, "", true);
    hub.release(a).unwrap();
    hub.release(b).unwrap();
    publish(&hub, b, "", true);
    assert_eq!(hub.usage().reserved, 0);
}

#[test]
fn a_request_knows_its_place_in_the_queue() {
    let hub = hub(3);
    let ids = [open(&hub, false), open(&hub, true), open(&hub, false)];
    let stages = |hub: &TestHub| ids.map(|id| hub.stage(id).unwrap());
    assert_eq!(stages(&hub), [Stage::Queued(0), Stage::Queued(1), Stage::Queued(2)]);
    let mut out = Outbox::default();
    out.admitted.push(ids[0].slot());
    out.events.push((ids[1].slot(), Box::new(Note { text: String::new(), last: true })));
    hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::None);
    assert_eq!(stages(&hub), [Stage::Running, Stage::Finished, Stage::Queued(0)]);
    let Usage { accepted, outcomes, unfinished, running, .. } = hub.usage();
    assert_eq!((accepted, outcomes[1], unfinished, running), (3, 1, 2, 1));
}

#[test]
fn a_flood_of_cancels_is_one_command() {
    let hub = hub(3);
    hub.cancel(Which::Any).unwrap();
    let id = open(&hub, false);
    for _ in 0..3 {
        hub.cancel(Which::Any).unwrap();
        hub.cancel(Which::One(id)).unwrap();
    }
    let commands = publish(&hub, id, "", true);
    assert_eq!(commands, [Command::Start(Parcel(id)), Command::EndAll { shutdown: false }]);
}

#[test]
fn a_slot_that_has_used_up_its_generations_is_retired() {
    let hub = hub(2);
    let id = open(&hub, false);
    hub.state.lock().slots.set_generation(id.slot() as usize, LAST_GENERATION);
    let last = RequestId::new(7, LAST_GENERATION, id.slot());
    publish(&hub, last, "", true);
    hub.release(last).unwrap();
    assert_ne!(open(&hub, false).slot(), id.slot());
}

#[test]
fn who_gives_more_than_is_polled_is_told_and_goes_on_once_it_is() {
    let hub = hub(2);
    let id = open(&hub, false);
    let mut out = Outbox::default();
    let mut give = |text: &str| {
        out.events.push((id.slot(), Box::new(Note { text: text.into(), last: false })));
        let mut commands = VecDeque::new();
        hub.exchange(0, &mut out, &mut commands, Rest::None);
        (std::mem::take(&mut out.slow), Vec::from(commands))
    };
    assert_eq!(give("12345"), (vec![], vec![Command::Start(Parcel(id))]));
    assert_eq!(give("67890"), (vec![], vec![]));
    assert_eq!(give("x"), (vec![id], vec![]));
    assert_eq!(give("y"), (vec![], vec![]), "it is told once");
    assert_eq!(poll(&hub, Which::Any).unwrap(), ["1234567890xy"]);
    assert_eq!(give("z"), (vec![], vec![Command::Resume(id)]));
}

#[test]
fn grants_come_back_with_their_events_and_wake_who_was_refused() {
    let hub = hub(2);
    let id = open(&hub, false);
    let grant = |bytes| hub.grant(id.slot(), bytes, true);
    assert!(grant(5));
    assert!(!grant(100_000), "more than there is");
    assert_eq!(hub.usage().reserved, 15);
    publish(&hub, id, "12345", false);
    let mut leases = Vec::new();
    hub.poll(Which::Any, 1, Some(Duration::ZERO), &mut |lease, _| leases.push((id, lease))).unwrap();
    let mut out = Outbox::default();
    hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::None);
    assert!(!out.retry_grants);
    hub.give_back(&mut leases.into_iter());
    hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::UntilCommand);
    assert!(out.retry_grants, "and did not sleep");
    assert_eq!(hub.usage().reserved, 10);
    publish(&hub, id, "end", true);
    assert!(grant(7));
    hub.release(id).unwrap();
    assert_eq!(hub.usage().reserved, 0);
}

#[test]
fn memory_of_an_ended_request_wakes_who_was_refused() {
    let hub = hub(3);
    let (a, b) = (open(&hub, false), open(&hub, true));
    assert!(hub.grant(a.slot(), 980, true) && !hub.grant(b.slot(), 100, true));
    // The request is live, so the engine thread must learn of the release.
    hub.release(a).unwrap();
    let mut out = Outbox::default();
    let mut commands = VecDeque::new();
    hub.exchange(0, &mut out, &mut commands, Rest::None);
    assert!(!out.retry_grants && commands.len() == 3);
    commands.clear();
    out.events.push((a.slot(), Box::new(Note { text: String::new(), last: true })));
    // A second exchange before the flag is read does not clear it.
    for _ in 0..2 {
        hub.exchange(0, &mut out, &mut commands, Rest::None);
    }
    assert!(out.retry_grants);
}

#[test]
fn a_grant_leaves_enough_for_the_others_to_end() {
    let hub = hub(3);
    let info = |alone| {
        let info = RequestInfo { reserved: 10, kept: 10, alone, ..RequestInfo::default() };
        (info, Parcel(RequestId(0)))
    };
    let mut ids = Vec::new();
    hub.submit(&mut vec![info(600), info(700)], &mut ids).unwrap();
    exchange(&hub, &[], Rest::None);
    let spare = 1000 + lease_bytes::<Note>() - 20;
    let (a, b) = (ids[0].slot(), ids[1].slot());
    assert!(hub.grant(a, 400, true));
    // `a` may need 190 more, and then returns 410.
    let most = spare - 400 - 190;
    assert!(!hub.grant(b, most.max(300) + 1, true) && hub.grant(b, 300, true));
}

/// Each device has a copy, so the room of the smallest one decides, not the sum of all.
#[test]
fn what_is_set_aside_has_a_bound_of_its_own() {
    let hub = hub(4);
    let first = hub.set_aside(500).unwrap();
    let refused = hub.set_aside(200).err().unwrap();
    assert_eq!(refused.status, Status::MemoryLimit);
    assert!(refused.message.contains("takes 200 bytes, and memory_limit_bytes leaves 100 "), "{refused}");
    drop(first);
    hub.set_aside(600).unwrap();
}

#[test]
fn what_was_set_aside_may_outlive_the_engine() {
    let hub = hub(4);
    let aside = hub.set_aside(100).unwrap();
    open(&hub, false);
    hub.destroy();
    assert_eq!(hub.usage().reserved, 100);
    drop(aside);
    assert_eq!(hub.usage().reserved, 0);
}

/// Any thread that takes back dropped bytes wakes the requests that wait for them.
#[test]
fn bytes_that_come_back_wake_who_was_refused() {
    let settles: [&dyn Fn(&TestHub); 5] = [
        &|hub| _ = hub.usage(),
        &|hub| _ = hub.keep(0),
        &|hub| _ = hub.set_aside(0),
        &|hub| _ = open(hub, false),
        &|hub| _ = submit(hub, &[(false, 5000)]),
    ];
    for settle in settles {
        let hub = hub(4);
        let id = open(&hub, false);
        let aside = hub.keep(600).unwrap();
        assert!(!hub.grant(id.slot(), 700, true));
        drop(aside);
        settle(&hub);
        let mut out = Outbox::default();
        hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::None);
        assert!(out.retry_grants);
    }
}

#[test]
fn a_grant_gets_bytes_that_came_back() {
    let hub = hub(4);
    let id = open(&hub, false);
    let aside = hub.keep(600).unwrap();
    assert!(!hub.grant(id.slot(), 700, true));
    drop(aside);
    assert!(hub.grant(id.slot(), 700, true));
}

/// Kept bytes leave room for all requests to finish, and `wants_kept` predicts whether a request fits without
/// them.
#[test]
fn what_is_kept_can_be_given_up_for_requests() {
    let hub = hub(4);
    let info = |reserved| {
        let info = RequestInfo { reserved, kept: reserved, alone: reserved, ..RequestInfo::default() };
        vec![(info, Parcel(RequestId(0)))]
    };
    let before = hub.usage().reserved;
    let kept = hub.keep(700).unwrap();
    assert_eq!(hub.usage().reserved - before, 700);
    assert!(hub.keep(2000).is_none());
    assert!(hub.wants_kept(&info(900), 700));
    for (reserved, kept) in [(10, 700), (900, 0), (900, 100), (5000, 700)] {
        assert!(!hub.wants_kept(&info(reserved), kept), "{reserved} bytes, {kept} kept");
    }
    let many: Vec<_> = (0..5).flat_map(|_| info(200)).collect();
    assert!(hub.wants_kept(&many[..4], 700) && !hub.wants_kept(&many, 700), "the queue has room for 4");
    drop(kept);
    assert!(!hub.wants_kept(&info(900), 700), "it fits");
    hub.submit(&mut info(900), &mut Vec::new()).unwrap();
}

#[test]
fn a_hold_wakes_a_thread_once_and_ends_with_the_hub() {
    let hub = hub_of(4, 2);
    let look = |thread: usize| {
        let mut out = Outbox::default();
        hub.exchange(thread, &mut out, &mut VecDeque::new(), Rest::For(Duration::ZERO));
        out.held
    };
    assert_eq!((hub.hold(true).unwrap(), hub.hold(true).unwrap()), (false, true));
    // A thread that waits for commands returns to see the hold.
    let mut out = Outbox::default();
    assert!(hub.exchange(0, &mut out, &mut VecDeque::new(), Rest::UntilCommand) && out.held);
    assert!(look(0) && look(1) && hub.is_held());
    assert!(hub.hold(false).unwrap() && !look(0));
    hub.hold(true).unwrap();
    hub.advance(Phase::Closing, false);
    assert!(!hub.is_held() && !look(0) && !look(1));
    assert_eq!(hub.hold(true).unwrap_err().status, Status::Shutdown);
    assert!(!hub.hold(false).unwrap());
    let idle = Rest::Idle(Duration::from_secs(3600));
    assert!(!exchange(&hub, &[], idle).0, "nobody will come");
}
