use super::super::tests::{plain, vocabulary};
use super::*;
use std::sync::atomic::AtomicBool;
use std::thread;

/// Hands out bytes up to `most` and counts them.
struct Treasury {
    most: u64,
    given: Arc<AtomicU64>,
}

struct Given(u64, Arc<AtomicU64>);

impl Drop for Given {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl Treasury {
    fn new(most: u64) -> Self {
        Self { most, given: Arc::default() }
    }

    fn given(&self) -> u64 {
        self.given.load(Ordering::Relaxed)
    }

    fn pay(&self, bytes: u64) -> Option<Counted> {
        (self.given() + bytes <= self.most).then(|| {
            self.given.fetch_add(bytes, Ordering::Relaxed);
            Box::new(Given(bytes, self.given.clone())) as Counted
        })
    }
}

fn guide(grammars: &Grammars, regex: &str, treasury: &Treasury) -> Guide {
    let constraint = plain(ConstraintKind::Regex, regex);
    grammars.guide(vocabulary(), &constraint, u64::MAX, &|bytes| treasury.pay(bytes)).unwrap()
}

/// A grammar whose lexer has thousands of states.
const GROWS: &str = "(a|b)*a(a|b){14}";

/// Drives the lexer into states that no output has reached before.
fn grow(guide: &mut Guide, mut state: u32) {
    for _ in 0..2000 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        guide.push(97 + (state >> 31)).unwrap();
    }
    guide.mask().unwrap();
}

fn held(grammars: &Grammars) -> u64 {
    grammars.totals.held.bytes()
}

#[test]
fn what_grammars_grow_to_is_counted_with_the_next_request() {
    let (grammars, treasury) = (Grammars::new(1, u64::MAX, || None), Treasury::new(u64::MAX));
    let mut first = guide(&grammars, GROWS, &treasury);
    let before = treasury.given();
    grow(&mut first, 1);
    let grown = held(&grammars);
    assert!(grown > before + (200 << 10), "{before} grew to {grown}");
    let second = guide(&grammars, GROWS, &treasury);
    assert!(treasury.given() >= grown, "{} of {grown}", treasury.given());
    assert_eq!(grammars.totals.compiled.load(Ordering::Relaxed), 1);
    drop((first, second));
    assert!(grammars.clear());
    assert_eq!(treasury.given(), 0);
    grammars.stop();
}

#[test]
fn what_an_output_made_grow_is_counted_at_its_end() {
    let (mut grammars, treasury) = (Grammars::new(1, u64::MAX, || None), Treasury::new(u64::MAX));
    let purse = |bytes| treasury.pay(bytes);
    let mut only = guide(&grammars, GROWS, &treasury);
    let before = treasury.given();
    grow(&mut only, 1);
    grammars.count(&purse);
    let (given, held) = (treasury.given(), held(&grammars));
    assert!(given > before && given >= held, "{given} of {held}");
    assert_eq!(grammars.kept(), given);
    grammars.most_bytes = given;
    grow(&mut only, 2);
    grammars.count(&purse);
    assert_eq!((treasury.given(), grammars.kept()), (0, 0), "it has grown too large");
    grammars.stop();
}

/// The oldest are evicted first, then the grown one itself if that is not enough.
#[test]
fn grammars_go_where_others_have_grown_beyond_the_room() {
    let compiled = |grammars: &Grammars| grammars.totals.compiled.load(Ordering::Relaxed);
    for others in [true, false] {
        let grammars = Grammars::new(1, u64::MAX, || None);
        let mut treasury = Treasury::new(u64::MAX);
        let mut one = guide(&grammars, GROWS, &treasury);
        for n in 0..if others { 20 } else { 0 } {
            guide(&grammars, &format!("x{n}"), &treasury);
        }
        treasury.most = treasury.given();
        grow(&mut one, 1);
        let so_far = compiled(&grammars);
        guide(&grammars, GROWS, &treasury);
        assert_eq!(compiled(&grammars), so_far, "it is used once more");
        assert!(treasury.given() <= treasury.most);
        guide(&grammars, GROWS, &treasury);
        assert_eq!(compiled(&grammars) == so_far, others, "kept if others could go");
        guide(&grammars, "x0", &treasury);
        assert!(compiled(&grammars) > so_far, "the oldest went");
        grammars.stop();
    }
}

/// A worker's mask grows a lexer while grammars are evicted for others.
#[test]
fn a_grammar_may_grow_while_it_goes() {
    let mut grammars = Grammars::new(1, u64::MAX, || None);
    let treasury = Treasury::new(u64::MAX);
    let (growing, ended) = (Mutex::new(None::<Arc<Weight>>), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(Ordering::Relaxed) {
                let weight = growing.lock().clone();
                for _ in 0..100 {
                    weight.iter().for_each(|weight| weight.grown(0, 1 << 40));
                    weight.iter().for_each(|weight| weight.grown(0, 1));
                }
            }
        });
        let outcome = crate::base::panics::catch(|| {
            for _ in 0..100 {
                grammars.most_bytes = u64::MAX;
                guide(&grammars, "a", &treasury);
                *growing.lock() = Some(grammars.entries.lock()[0].shared.weight.clone());
                grammars.most_bytes = 1;
                guide(&grammars, "b", &treasury);
                assert!(grammars.entries.lock().is_empty());
            }
        });
        ended.store(true, Ordering::Relaxed);
        outcome.unwrap();
    });
    assert_eq!(treasury.given(), 0);
    grammars.stop();
}
