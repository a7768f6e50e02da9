//! Breaks lines between words as they arrive.
use console::Term;
use unicode_width::UnicodeWidthChar;

const TAB: usize = 8;

/// Holds back a word until its end. Escape sequences are not handled, since filtered text has none.
#[derive(Default)]
pub struct Wrap {
    /// Columns of the terminal. 0: lines are left as they are.
    pub columns: usize,
    column: usize,
    /// Blanks before `word`, which are dropped at a line break.
    gap: String,
    gap_width: usize,
    word: String,
    word_width: usize,
    /// The word is longer than a line, so it is printed as it arrives.
    long: bool,
}

impl Wrap {
    /// Appends what can be printed now.
    pub fn add(&mut self, text: &str, out: &mut String) {
        if self.columns == 0 {
            out.push_str(text);
            return;
        }
        for c in text.chars() {
            self.add_one(c, out);
        }
    }

    fn add_one(&mut self, c: char, out: &mut String) {
        match c {
            '\n' => {
                self.flush(out);
                out.push(c);
                self.column = 0;
            }
            ' ' | '\t' => {
                if !self.word.is_empty() || self.long {
                    self.flush(out);
                }
                self.gap.push(c);
                let at = self.column + self.gap_width;
                self.gap_width += if c == '\t' { TAB - at % TAB } else { 1 };
            }
            _ => self.add_to_word(c, out),
        }
    }

    fn add_to_word(&mut self, c: char, out: &mut String) {
        let width = c.width().unwrap_or(0);
        if self.long {
            out.push(c);
            self.column = (self.column + width) % self.columns;
            return;
        }
        // Lines may be broken at every wide character.
        let beside_wide = width > 1 || (width == 1 && self.word.chars().any(|c| c.width() > Some(1)));
        if beside_wide && !self.word.is_empty() {
            self.flush(out);
        }
        self.word.push(c);
        self.word_width += width;
        if self.word_width > self.limit() {
            self.flush(out);
            self.long = true;
        }
    }

    /// The last column stays free: some terminals go on to the next line as soon as it is filled.
    fn limit(&self) -> usize {
        self.columns.saturating_sub(1)
    }

    /// Appends the held word, at its end or at the end of the answer.
    pub fn flush(&mut self, out: &mut String) {
        let fits = |width| self.column + self.gap_width + width <= self.limit();
        let breaks = self.column > 0 && self.word_width <= self.limit() && !fits(self.word_width);
        if breaks && !self.word.is_empty() {
            out.push('\n');
            self.column = 0;
        } else if !breaks {
            out.push_str(&self.gap);
            self.column += self.gap_width;
        }
        out.push_str(&self.word);
        self.column = (self.column + self.word_width) % self.columns.max(1);
        self.gap.clear();
        self.word.clear();
        (self.gap_width, self.word_width, self.long) = (0, 0, false);
    }
}

/// A whole text, broken into lines of `columns` columns.
pub fn wrapped(text: &str, columns: usize) -> String {
    let mut wrap = Wrap { columns, ..Wrap::default() };
    let mut out = String::new();
    wrap.add(text, &mut out);
    wrap.flush(&mut out);
    out
}

/// Columns of a terminal; 0 if it is not a terminal or the width is unknown.
pub fn columns(of: &Term) -> usize {
    of.size_checked().map_or(0, |(_, columns)| columns.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_any_parts(columns: usize, text: &str) -> String {
        let out = wrapped(text, columns);
        let mut one_by_one = Wrap { columns, ..Wrap::default() };
        let mut same = String::new();
        for c in text.chars() {
            one_by_one.add(&c.to_string(), &mut same);
        }
        one_by_one.flush(&mut same);
        assert_eq!(out, same);
        out
    }

    #[test]
    fn words_stay_whole() {
        for (text, expected) in [
            ("the quick brown fox", "the quick\nbrown fox"),
            ("the quick  brown", "the quick\nbrown"),
            ("123456789 1", "123456789\n1"),
            ("1234567890", "1234567890"),
            ("a 12345678901 b", "a 12345678901 b"),
            ("  a\n\n  b", "  a\n\n  b"),
            ("trailing     \nb", "trailing\nb"),
            ("a \nb ", "a \nb "),
            ("漢字漢字漢字", "漢字漢字\n漢字"),
            ("a漢字漢字b", "a漢字漢字\nb"),
            ("e\u{301}e\u{301}e\u{301}e\u{301} aaaaa", "e\u{301}e\u{301}e\u{301}e\u{301}\naaaaa"),
        ] {
            assert_eq!(in_any_parts(10, text), expected, "{text:?}");
        }
    }

    #[test]
    fn without_a_width_nothing_changes() {
        let text = "the quick brown fox jumps over the lazy dog ";
        assert_eq!(in_any_parts(0, text), text);
    }
}
