//! Finds the written forms of special tokens in a text.

use crate::base::{Result, reserve};

/// Maximum length of a written form; real ones have some tens of bytes. Bounds the work per byte of text.
pub(super) const MAX_SPECIAL_BYTES: usize = 256;

/// The written forms of special tokens, sorted.
pub(super) struct Specials {
    forms: Vec<(Vec<u8>, u32)>,
    /// Marks the bytes that a form starts with.
    first: [bool; 256],
}

impl Specials {
    /// Forms that are empty or longer than [`MAX_SPECIAL_BYTES`] are left out. `OutOfMemory`.
    pub(super) fn new(all: impl Iterator<Item = (Vec<u8>, u32)>) -> Result<Self> {
        let mut forms = Vec::new();
        for form in all.filter(|(f, _)| (1..=MAX_SPECIAL_BYTES).contains(&f.len())) {
            reserve(&mut forms, 1, "special tokens")?;
            forms.push(form);
        }
        forms.sort_unstable();
        let mut first = [false; 256];
        forms.iter().for_each(|(form, _)| first[form[0] as usize] = true);
        Ok(Self { forms, first })
    }

    /// Number of bytes of the longest form.
    pub(super) fn longest(&self) -> usize {
        self.forms.iter().map(|(form, _)| form.len()).max().unwrap_or(0)
    }

    /// The first special token in `text`, the longest if several start there: (start, end, id).
    pub(super) fn find(&self, text: &str) -> Option<(usize, usize, u32)> {
        let bytes = text.as_bytes();
        // A form is complete UTF-8, so a match begins and ends on character boundaries.
        (0..bytes.len()).filter(|&i| self.first[bytes[i] as usize]).find_map(|start| {
            let (len, id) = self.longest_prefix(&bytes[start..])?;
            Some((start, start + len, id))
        })
    }

    /// The longest special token that `text` begins with.
    pub(super) fn at_start(&self, text: &str) -> Option<u32> {
        self.longest_prefix(text.as_bytes()).map(|(_, id)| id)
    }

    /// Narrows the sorted forms to those that share ever longer prefixes with `text`.
    fn longest_prefix(&self, text: &[u8]) -> Option<(usize, u32)> {
        let mut candidates = &self.forms[..];
        let mut found = None;
        for (i, &byte) in text.iter().enumerate() {
            // All candidates agree on i bytes; those that end there sort first.
            let low = candidates.partition_point(|(form, _)| form.get(i).is_none_or(|&b| b < byte));
            let high = candidates.partition_point(|(form, _)| form.get(i).is_none_or(|&b| b <= byte));
            candidates = &candidates[low..high];
            match candidates.first() {
                None => break,
                Some((form, id)) if form.len() == i + 1 => found = Some((form.len(), *id)),
                Some(_) => {}
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specials(forms: &[&str]) -> Specials {
        Specials::new(forms.iter().zip(0..).map(|(f, i)| (f.as_bytes().to_vec(), i))).unwrap()
    }

    #[test]
    fn finds_the_first_and_there_the_longest() {
        let s = specials(&["<a>", "<a><b>", "<", "é", "", "<a"]);
        assert_eq!(s.find("x<a><b>y"), Some((1, 7, 1)));
        assert_eq!(s.find("x<a><c>"), Some((1, 4, 0)));
        assert_eq!(s.find("x<ab"), Some((1, 3, 5)));
        assert_eq!(s.find("x<"), Some((1, 2, 2)));
        assert_eq!(s.find("xé<"), Some((1, 3, 3)));
        assert_eq!((s.at_start("<a><b>y"), s.at_start("x<a>")), (Some(1), None));
        assert_eq!(s.find("nothing > here è"), None);
        assert_eq!(specials(&[]).find("<a>"), None);
    }

    #[test]
    fn agrees_with_a_plain_scan() {
        let forms = ["aa", "ab", "aab", "b", "bba", "abba"];
        let s = specials(&forms);
        for code in 0..3usize.pow(8) {
            let text: String = (0..8).map(|i| ['a', 'b', 'c'][code / 3usize.pow(i) % 3]).collect();
            let plain = (0..text.len()).find_map(|at| {
                let hits = forms.iter().zip(0u32..).filter(|(f, _)| text[at..].starts_with(**f));
                hits.max_by_key(|(f, _)| f.len()).map(|(f, id)| (at, at + f.len(), id))
            });
            assert_eq!(s.find(&text), plain, "{text}");
        }
    }
}
