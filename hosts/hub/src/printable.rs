//! Makes untrusted text safe to print on a terminal.
use std::borrow::Cow;

/// C0 and C1 with ESC, the line breaks of Unicode, and the marks that turn the direction of text around them.
fn acts(c: char) -> bool {
    let breaks = matches!(c, '\u{2028}' | '\u{2029}');
    let turns =
        matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    c.is_control() || breaks || turns
}

fn without(text: &str, omitted: impl Fn(char) -> bool) -> Cow<'_, str> {
    if text.contains(&omitted) { text.chars().filter(|&c| !omitted(c)).collect() } else { text.into() }
}

/// The text without control characters, including line breaks and tabs, and without characters that change the
/// direction of text. For names.
pub fn printable(text: &str) -> Cow<'_, str> {
    without(text, acts)
}

/// Like `printable`, but keeps line feeds and tabs. For answers and messages.
pub fn printable_lines(text: &str) -> Cow<'_, str> {
    without(text, |c| acts(c) && c != '\n' && c != '\t')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_acts_on_a_terminal_is_omitted() {
        let cases = [
            ("tiny-Q4_K_M.gguf", "tiny-Q4_K_M.gguf"),
            ("größe ☃ 猫 👩‍🚀", "größe ☃ 猫 👩‍🚀"),
            ("\x1b[31mred\x1b[0m", "[31mred[0m"),
            ("\x1b]0;title\x07name", "]0;titlename"),
            ("\u{9b}31mred\u{9d}", "31mred"),
            ("a\r\nb\tc\0d\x7f", "abcd"),
            ("fugg\u{202e}.gguf\u{2066}\u{200f}\u{61c}", "fugg.gguf"),
            ("a\u{2028}b\u{2029}", "ab"),
        ];
        for (text, expected) in cases {
            assert_eq!(printable(text), expected);
        }
        assert!(matches!(printable("as it is"), Cow::Borrowed(_)));
    }

    #[test]
    fn lines_stay_in_texts_of_several() {
        assert_eq!(printable_lines("a\n\tb\r\x1b[2J\u{85}c"), "a\n\tb[2Jc");
    }
}
