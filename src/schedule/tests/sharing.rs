//! Prefixes and sessions that sequences take over from one another.

use super::*;

/// Distinct tokens.
fn text(len: u32) -> Vec<u32> {
    (1..=len).collect()
}

/// Their contents.
fn ids(len: u32) -> Vec<ContentId> {
    text(len).into_iter().map(id).collect()
}

impl Bench {
    fn submit_text(&mut self, seq: u32, text: &[u32], reuse: Reuse) {
        let all = &mut self.texts.0;
        all.resize(all.len().max(seq as usize + 1), Vec::new());
        all[seq as usize] = text.to_vec();
        let prompt_len = text.len() as u32;
        self.submit_as(seq, Request { prompt_len, max_new: 20, reuse, ..Request::default() });
    }

    fn submit_same(&mut self, seq: u32, text: &[u32]) {
        self.submit_text(seq, text, Reuse::default());
    }

    /// Runs until `seq` has sampled its first token.
    fn run_to_first(&mut self, seq: u32) {
        while !self.step().iter().any(|&(entry, _, _, sample, _)| entry == seq && sample) {}
    }
}

fn roomy() -> Bench {
    Bench::new(SchedulerConfig { blocks: 40, max_batch_tokens: 64, ..config() })
}

#[test]
fn an_equal_prompt_takes_whole_blocks_and_copies_the_last() {
    for (len, shared, copied) in [(40, 2, 7), (48, 2, 15), (41, 2, 8), (16, 0, 15), (17, 1, 0), (3, 0, 2)] {
        let mut b = roomy();
        b.submit_same(0, &text(len));
        b.run_to_first(0);
        b.submit_same(1, &text(len));
        b.plan();
        // The last row is computed again, for its logits.
        assert_eq!(b.admitted(), [(1, len - 1)], "{len} tokens");
        let (first, second) = (b.s.block_table(SeqId(0)), b.s.block_table(SeqId(1)));
        assert_eq!(first[..shared], second[..shared], "{len} tokens");
        assert!(first[shared..].iter().all(|block| !second[shared..].contains(block)), "{len} tokens");
        let copies = if copied > 0 { vec![(first[shared], second[shared])] } else { vec![] };
        assert_eq!((&b.plan.copies, b.s.events().copies), (&copies, copies.len() as u64), "{len} tokens");
        assert!(
            b.plan.entries.iter().any(|e| e.seq.0 == 1 && (e.start, e.rows, e.sample) == (len - 1, 1, true))
        );
        b.commit();
        let events = b.s.events();
        assert_eq!(
            (events.cached_positions, events.prompt_positions),
            (u64::from(len) - 1, 2 * u64::from(len))
        );
    }
}

#[test]
fn two_that_compute_the_same_in_one_step_end_with_the_same_blocks() {
    let mut b = roomy();
    // Too short for one to wait for the other.
    (0..2).for_each(|seq| b.submit_same(seq, &text(16)));
    assert_eq!(b.step().len(), 2);
    assert_eq!(b.s.block_table(SeqId(0)), b.s.block_table(SeqId(1)));
    assert_eq!((b.s.cache_counts().merged, b.s.counts().blocks_used), (1, 1));
}

#[test]
fn a_next_turn_takes_the_turns_before() {
    let mut b = roomy();
    b.submit_same(0, &text(40));
    b.run_to_first(0);
    (0..5).for_each(|_| _ = b.step());
    let computed = b.s.computed(SeqId(0)).unwrap();
    assert_eq!(computed, 45);
    let whole: Vec<u32> = (0..46).map(|at| b.texts.token(SeqId(0), at)).chain([7, 8, 9]).collect();
    b.cancel(0);
    b.submit_same(1, &whole);
    b.step();
    assert_eq!(b.admitted(), [(1, computed)]);
}

#[test]
fn who_begins_like_a_prompt_in_flight_waits_for_it_and_then_has_it() {
    let mut b = roomy();
    b.submit_same(0, &text(200));
    b.step();
    (1..4).for_each(|seq| b.submit_same(seq, &text(200)));
    b.step();
    assert_eq!((b.admitted(), b.s.counts().waiting, b.s.events().followed), (vec![], 3, 3));
    // Another request need not wait for them.
    b.submit_same(4, &[9; 8]);
    b.cancel(3);
    b.step();
    assert_eq!(b.admitted(), [(4, 0)]);
    b.run_to_first(0);
    b.step();
    assert_eq!((b.admitted(), b.s.events().followed), (vec![(1, 199), (2, 199)], 3));
}

#[test]
fn followers_of_who_is_cancelled_or_paused_go_on_with_what_it_left() {
    for pause in [false, true] {
        let mut b = roomy();
        b.submit_same(0, &text(200));
        b.step();
        b.submit_same(1, &text(200));
        b.submit_same(2, &text(200));
        b.step();
        assert_eq!((b.admitted(), b.s.computed(SeqId(0))), (vec![], Some(128)));
        if pause {
            b.pause(0);
        } else {
            b.cancel(0);
        }
        // One continues, and is now the leader of the other.
        b.step();
        assert_eq!((b.admitted(), b.state(2)), (vec![(1, 128)], State::Waiting));
        b.run_to_first(1);
        b.step();
        assert_eq!(b.admitted(), [(2, 199)]);
    }
}

#[test]
fn a_request_shares_only_what_it_may() {
    let alone = Reuse { shared: false, ..Reuse::default() };
    let whole = Reuse { limit: 0, ..Reuse::default() };
    let half = Reuse { limit: 20, ..Reuse::default() };
    let salted = Reuse { salt: 5, ..Reuse::default() };
    for (first, second, cached) in [
        (Reuse::default(), alone, 0),
        (alone, Reuse::default(), 0),
        (Reuse::default(), whole, 0),
        (whole, Reuse::default(), 39),
        (Reuse::default(), half, 20),
        (Reuse::default(), salted, 0),
        (salted, Reuse::default(), 0),
        (salted, salted, 39),
    ] {
        let mut b = roomy();
        b.submit_text(0, &text(40), first);
        b.run_to_first(0);
        b.submit_text(1, &text(40), second);
        b.step();
        assert_eq!(b.admitted(), [(1, cached)], "{first:?}, {second:?}");
    }
}

#[test]
fn what_ended_is_forgotten_when_others_need_the_room() {
    let mut b = Bench::new(config());
    b.submit_same(0, &text(100));
    b.run_to_first(0);
    b.cancel(0);
    assert_eq!((b.s.counts().blocks_cached, b.s.counts().blocks_used), (7, 0));
    b.submit_same(1, &[3; 120]);
    b.run_to_first(1);
    b.cancel(1);
    // Its last blocks were evicted first.
    assert_eq!(b.s.cache_counts().evictions, 5);
    b.submit_same(2, &text(100));
    b.step();
    assert_eq!(b.admitted(), [(2, 32)]);
}

#[test]
fn a_session_keeps_what_others_would_take() {
    let mut b = Bench::new(config());
    b.submit_same(0, &text(70));
    b.run_to_first(0);
    b.s.keep_session("chat", SeqId(0), &b.texts).unwrap();
    b.cancel(0);
    let session = b.s.session("chat").unwrap();
    assert_eq!((session.contents.clone(), session.table.len(), b.s.session_counts()), (ids(70), 5, (1, 5)));
    b.submit_same(1, &[3; 79]);
    b.run_to_first(1);
    b.cancel(1);
    b.submit_same(2, &text(75));
    b.step();
    assert_eq!(b.admitted(), [(2, 70)]);
    b.cancel(2);
    // A session may not take more than half of the memory, and a sequence that runs alone gets all of it.
    b.submit_same(3, &[4; 140]);
    b.run_to_first(3);
    assert_eq!((b.s.session_counts(), b.s.events().dropped_sessions), ((0, 0), 1));
    b.s.keep_session("chat", SeqId(3), &b.texts).unwrap();
    assert!(b.s.session("chat").is_none() && !b.s.drop_session("chat"));
}

#[test]
fn who_kept_nothing_for_others_has_no_session() {
    let mut b = Bench::new(config());
    b.submit_text(0, &text(40), Reuse { shared: false, ..Reuse::default() });
    b.run_to_first(0);
    b.s.keep_session("chat", SeqId(0), &b.texts).unwrap();
    b.s.keep_session("chat", SeqId(9), &b.texts).unwrap();
    assert!(b.s.session("chat").is_none());
}

/// Two equal conversations are two sessions, although one block has the end of both.
#[test]
fn equal_conversations_are_kept_under_both_names() {
    for len in [3, 16, 20] {
        let mut b = roomy();
        for (seq, name) in [(0, "a"), (1, "b")] {
            b.submit_same(seq, &text(len));
            b.run_to_first(seq);
            b.s.keep_session(name, SeqId(seq), &b.texts).unwrap();
            b.cancel(seq);
            assert_eq!(b.s.session(name).expect("it is kept").contents, ids(len), "{name}");
            b.s.check().unwrap();
        }
        b.s.restore_session("c", ids(len), Vec::new(), 0, &mut |_| Ok(()), &mut |_| Ok(())).unwrap();
        b.s.check().unwrap();
        ["a", "b"].into_iter().for_each(|name| assert!(b.s.drop_session(name)));
        // The session that is left keeps it in the cache.
        b.s.cache_mut().clear();
        b.submit_same(2, &text(len));
        b.plan();
        assert_eq!(b.plan.admitted[0].cached, len - 1, "{len} tokens");
        b.s.check().unwrap();
    }
}
