use super::Inbox;
use crate::event::{Event, EventContent, ToolCallPart};
use crate::finish::{Finish, FinishReason, Times, Usage};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

fn text(text: &str) -> EventContent<'_> {
    EventContent { text, ..EventContent::default() }
}

fn last() -> EventContent<'static> {
    let finish = Finish {
        reason: FinishReason::Stop,
        error: None,
        stop_index: None,
        embedding: None,
        pooling: None,
        decisions: None,
        tool_calls_total: 0,
        usage: Usage::default(),
        times: Times::default(),
    };
    EventContent { finish: Some(finish), ..EventContent::default() }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn what_waits_becomes_one_event() {
    let inbox = Inbox::new(9, None);
    inbox.push(text("a"));
    inbox.push(text("b"));
    let event = inbox.take().unwrap();
    assert_eq!((event.text.as_str(), event.user_data, event.finish), ("ab", 9, None));
    inbox.push(text("c"));
    inbox.push(last());
    assert!(inbox.ended() && !inbox.over());
    let event = inbox.take().unwrap();
    assert!(event.text == "c" && event.finish.is_some() && inbox.over());
    assert_eq!((inbox.take(), inbox.try_take(), inbox.take_within(Duration::MAX)), (None, None, None));
}

#[test]
fn too_much_is_told_once() {
    let inbox = Inbox::new(0, Some(3));
    let told: Vec<bool> = ["abc", "d", "e"].map(|part| inbox.push(text(part)).too_much).into();
    assert_eq!((told, inbox.overflowed()), (vec![false, true, false], true));
    assert_eq!(inbox.take().unwrap().text, "abcde");
    let inbox = Inbox::new(0, Some(3));
    for _ in 0..4 {
        assert!(!inbox.push(text("abc")).too_much);
        inbox.take().unwrap();
    }
    assert!(!inbox.push(EventContent { text: "abcd", ..last() }).too_much && !inbox.overflowed());
}

#[test]
fn an_abandoned_inbox_keeps_nothing() {
    let inbox = Inbox::new(0, Some(1));
    let waker = Waker::from(Arc::new(Count::default()));
    assert_eq!(inbox.poll(&Context::from_waker(&waker)), Poll::Pending);
    inbox.abandon();
    assert!(!inbox.push(text("abc")).too_much && inbox.push(text("abc")).waker.is_none());
    assert!(inbox.over() && !inbox.ended() && inbox.take().is_none());
    inbox.push(last());
    assert!(inbox.ended() && inbox.try_take().is_none());
}

#[test]
fn the_latest_waker_is_woken_once() {
    let inbox = Inbox::new(0, None);
    let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
    for count in [&counts[0], &counts[0], &counts[1]] {
        let waker = Waker::from(count.clone());
        assert_eq!(inbox.poll(&Context::from_waker(&waker)), Poll::Pending);
    }
    inbox.push(text("a")).waker.unwrap().wake();
    assert!(inbox.push(text("b")).waker.is_none());
    assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    let waker = Waker::noop();
    assert!(
        matches!(inbox.poll(&Context::from_waker(waker)), Poll::Ready(Some(event)) if event.text == "ab")
    );
    inbox.push(last());
    assert!(matches!(inbox.poll(&Context::from_waker(waker)), Poll::Ready(Some(_))));
    assert_eq!(inbox.poll(&Context::from_waker(waker)), Poll::Ready(None));
}

#[test]
fn a_short_wait_ends() {
    let inbox = Inbox::new(0, None);
    assert_eq!(inbox.take_within(Duration::from_millis(1)), None);
    assert!(!inbox.over());
}

/// Wakes a thread.
struct Signal(Mutex<mpsc::Sender<()>>);

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        let _ = self.0.lock().unwrap().send(());
    }
}

/// Reads as a task does: after Pending, only a wake-up leads to another poll.
fn read_as_task(inbox: &Inbox) -> Vec<Event> {
    let (sender, receiver) = mpsc::channel();
    let waker = Waker::from(Arc::new(Signal(Mutex::new(sender))));
    let mut all = Vec::new();
    loop {
        match inbox.poll(&Context::from_waker(&waker)) {
            Poll::Ready(Some(event)) => all.push(event),
            Poll::Ready(None) => return all,
            Poll::Pending => receiver.recv().unwrap(),
        }
    }
}

fn read_as_thread(inbox: &Inbox) -> Vec<Event> {
    std::iter::from_fn(|| inbox.take()).collect()
}

/// Nothing is lost, doubled or out of order, and no wake-up is missed.
#[test]
fn a_reader_gets_what_a_writer_brings() {
    let (rounds, parts) = if cfg!(miri) { (4, 16) } else { (200, 200) };
    for round in 0..rounds {
        let inbox = Inbox::new(0, None);
        let events = thread::scope(|scope| {
            let reader =
                scope.spawn(|| if round % 2 == 0 { read_as_task(&inbox) } else { read_as_thread(&inbox) });
            for number in 0..parts {
                let pushed = inbox.push(EventContent { tokens: &[number], ..EventContent::default() });
                if let Some(waker) = pushed.waker {
                    waker.wake();
                }
            }
            if let Some(waker) = inbox.push(last()).waker {
                waker.wake();
            }
            reader.join().unwrap()
        });
        let tokens: VecDeque<u32> = events.iter().flat_map(|event| event.tokens.clone()).collect();
        assert!(tokens.iter().copied().eq(0..parts));
        assert_eq!(events.iter().filter(|event| event.finish.is_some()).count(), 1);
        assert!(events.last().unwrap().finish.is_some());
    }
}

#[test]
fn parts_of_a_call_become_one() {
    let part = |index, id: Option<&str>, arguments: &str| ToolCallPart {
        index,
        id: id.map(str::to_owned),
        name: id.map(str::to_uppercase),
        arguments: arguments.to_owned(),
        text_before: 0,
    };
    let inbox = Inbox::new(0, None);
    let calls = |tool_calls| EventContent { tool_calls, ..EventContent::default() };
    inbox.push(calls(vec![part(0, Some("a"), "{")]));
    inbox.push(calls(vec![part(0, None, "}"), part(1, Some("b"), "[")]));
    inbox.push(calls(vec![part(1, None, "]")]));
    let event = inbox.take().unwrap();
    assert_eq!(event.tool_calls, [part(0, Some("a"), "{}"), part(1, Some("b"), "[]")]);
    inbox.push(calls(vec![part(1, None, "!")]));
    let mut whole = event;
    whole.append(inbox.take().unwrap());
    assert_eq!(whole.tool_calls[1], part(1, Some("b"), "[]!"));
    assert_eq!(whole.bytes(), "{}[]!".len());
}

/// A call's position is that of the text when it began, even if later text is in the same event.
#[test]
fn calls_know_the_text_before_them() {
    let inbox = Inbox::new(0, None);
    let call = |index, text_before| ToolCallPart { index, text_before, ..ToolCallPart::default() };
    inbox.push(EventContent { text: "ab", tool_calls: vec![call(0, 2)], ..EventContent::default() });
    inbox.push(EventContent {
        text: "cd",
        tool_calls: vec![call(0, 0), call(1, 2)],
        ..EventContent::default()
    });
    let mut whole = inbox.take().unwrap();
    assert_eq!((whole.text.as_str(), &whole.tool_calls[..]), ("abcd", &[call(0, 2), call(1, 4)][..]));
    inbox.push(EventContent { text: "e", tool_calls: vec![call(2, 1)], ..EventContent::default() });
    let event = inbox.take().unwrap();
    assert_eq!(event.tool_calls, [call(2, 1)]); // of this event's text
    whole.append(event);
    assert_eq!(whole.tool_calls[2], call(2, 5));
}
