use super::*;
use proptest::prelude::*;

fn matcher(stops: &[&str]) -> StopMatcher {
    let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
    StopMatcher::new(&[], &[], &stops).unwrap()
}

/// The stop rule as it is documented, in plain code.
fn naive(text: &str, stops: &[String]) -> (String, Option<usize>) {
    for (end, _) in text.char_indices().skip(1).chain([(text.len(), ' ')]) {
        let before = &text[..end];
        let longest = stops.iter().filter(|s| before.ends_with(*s)).max_by_key(|s| s.len());
        if let Some(longest) = longest {
            let index = stops.iter().position(|s| s == longest);
            return (before[..end - longest.len()].to_string(), index);
        }
    }
    (text.to_string(), None)
}

#[test]
fn holds_back_and_lets_go() {
    let mut stop = matcher(&["ö!", "STOP"]);
    let mut out = String::new();
    assert_eq!(stop.push("one ST", &mut out), None);
    assert_eq!(out, "one ");
    assert_eq!(stop.push("ART ö", &mut out), None);
    assert_eq!(out, "one START ");
    assert_eq!(stop.push("S", &mut out), None);
    assert_eq!(out, "one START ö");
    assert_eq!(stop.push("TOP more", &mut out), Some(1));
    assert_eq!(stop.push("and more", &mut out), Some(1));
    stop.finish(&mut out);
    assert_eq!(out, "one START ö");
}

#[test]
fn finish_gives_out_what_was_held() {
    let mut stop = matcher(&["abc"]);
    let mut out = String::new();
    assert_eq!(stop.push("xab", &mut out), None);
    stop.finish(&mut out);
    assert_eq!(out, "xab");
}

#[test]
fn tokens_and_bad_input() {
    let mut stop = StopMatcher::new(&[5], &[2, 3], &[""; 0]).unwrap();
    assert_eq!([2, 3, 4, 5].map(|t| stop.stop_token(t)), [Some(None), Some(None), None, Some(Some(0))]);
    stop.ignore_ends();
    assert_eq!([2, 3, 4, 5].map(|t| stop.stop_token(t)), [None, None, None, Some(Some(0))]);
    assert_eq!(stop.tokens(), [5, 2, 3]);
    assert!(StopMatcher::new(&[], &[], &["a".into(), String::new()]).err().unwrap().message.contains("[1]"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 20_000, failure_persistence: None, ..Default::default() })]
    /// Few letters, so that stop strings overlap themselves, each other and the text.
    #[test]
    fn agrees_with_a_search_of_the_whole_text(
        text in "[abé]{0,24}",
        stops in prop::collection::vec("[abé]{1,5}", 0..4),
        cuts in prop::collection::vec(0usize..24, 0..8),
    ) {
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&c| text.is_char_boundary(c)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort();
        let mut stop = StopMatcher::new(&[], &[], &stops).unwrap();
        let (mut out, mut stopped) = (String::new(), None);
        let (want, want_stopped) = naive(&text, &stops);
        for pair in cuts.windows(2) {
            stopped = stop.push(&text[pair[0]..pair[1]], &mut out);
            // No byte that the final text lacks may be given out.
            prop_assert!(want.starts_with(&out));
            if stopped.is_none() {
                // Nothing may be held that cannot be the start of a stop string.
                let held = &text[out.len()..pair[1]];
                prop_assert!(held.is_empty() || stops.iter().any(|s| s.len() > held.len() && s.starts_with(held)));
            }
        }
        stop.finish(&mut out);
        prop_assert_eq!((out, stopped), (want, want_stopped));
    }
}

#[test]
fn no_stop_string_goes_across_a_cut() {
    let mut matcher = StopMatcher::new(&[], &[], &["abc", "cab"]).unwrap();
    let mut out = String::new();
    assert_eq!(matcher.push("xab", &mut out), None);
    assert_eq!(out, "x");
    matcher.cut(&mut out);
    assert_eq!(out, "xab");
    assert_eq!(matcher.push("ca", &mut out), None);
    assert_eq!(matcher.push("b!", &mut out), Some(1));
    assert_eq!(out, "xab");
}
