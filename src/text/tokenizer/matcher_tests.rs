use super::matcher::Matcher;
use crate::base::Status;
use fancy_regex::Regex;
use proptest::prelude::*;

fn plain(pattern: &str, text: &str) -> Vec<((usize, usize), bool)> {
    let (mut done, mut out) = (0, Vec::new());
    for found in Regex::new(pattern).unwrap().find_iter(text) {
        let found = found.unwrap();
        if done < found.start() {
            out.push(((done, found.start()), false));
        }
        out.push(((found.start(), found.end()), true));
        done = found.end();
    }
    if done < text.len() || text.is_empty() {
        out.push(((done, text.len()), false));
    }
    out
}

const PATTERNS: [&str; 22] = [
    "a*b|a",
    "(?>a*)b|a",
    "(?=[ab]*c)a|b+",
    r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))|\p{L}+",
    r"(?<=a)b|(?<!b)a|\s+",
    r"(?i:'S|'ll|K)| ?\p{L}++|\s+(?!\S)|\s+",
    "a??b|(ab)+?",
    "^a|b$|(?m:^b|a$)",
    r"\bab|\Bb",
    "x*",
    "(a|ab)(c|bcd)?",
    "",
    r"[^\r\n\p{L}\p{N}]?+\p{L}+|.",
    "a{2}|a{2,}b|b{0,2}a",
    "(?s:.)a",
    "(?:a|b|)c",
    r"é+|\x{e9}|ü",
    "[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+",
    "(?!a)[ab]+",
    "(?=(?>a+)b)a",
    r"\s*[\r\n]+|\s+$",
    "(?i)é|ß|ſ",
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn finds_what_the_engine_finds(
        at in 0..PATTERNS.len(), text in "[abcAKx1-9 \n\r'sSlLéÉü._ſß\u{e000}\u{1d7ce}]{0,24}"
    ) {
        let matcher = Matcher::new(PATTERNS[at]).unwrap();
        prop_assert_eq!(matcher.cut(&text).unwrap(), plain(PATTERNS[at], &text), "{}", PATTERNS[at]);
    }
}

#[test]
fn a_text_ends_within_its_steps() {
    let long = "a".repeat(32 << 10);
    for pattern in
        [r"(?>a*)b|a", r"(?=[\s\S]*)[\s\S]", "a*b|a", "(?:a|aa)+b", "(a?){30}a{30}b", r"[\s\S]*(?<!a)\z|a"]
    {
        let pattern = Matcher::new(pattern).unwrap();
        let error = pattern.cut(&long).unwrap_err();
        assert_eq!(error.status, Status::TooLong);
        assert!(error.message.contains("steps for a text of 32768 bytes"), "{error}");
    }
}

#[test]
fn parts_that_no_tokenizer_needs_are_refused() {
    let nested = format!("{}a{}", "(?=".repeat(17), ")".repeat(17));
    for pattern in
        [r"(a)\1", "(a*)*", r"(?<=a+)b", r"a\Kb", r"\Ga", "a{9999}b{9999}", &nested, "(", "(?:a{200}){200}"]
    {
        assert!(Matcher::new(pattern).is_err(), "{pattern}");
    }
}
