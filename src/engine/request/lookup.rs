//! Drafts from a request's own text: the tokens that followed an earlier occurrence of its last tokens.

use crate::base::reserve;
use crate::schedule::MAX_DRAFT;

/// The tokens of a request: its prompt, then its output.
#[derive(Clone, Copy)]
pub(crate) struct Text<'a> {
    pub prompt: &'a [u32],
    pub output: &'a [u32],
}

impl Text<'_> {
    pub(crate) fn len(&self) -> usize {
        self.prompt.len() + self.output.len()
    }

    pub(crate) fn at(&self, position: usize) -> u32 {
        match self.prompt.get(position) {
            Some(&token) => token,
            None => self.output[position - self.prompt.len()],
        }
    }

    /// Number of equal tokens before `a` and before `b > a`, at most `LONG`.
    fn in_common(&self, a: usize, b: usize) -> usize {
        (0..a.min(LONG)).take_while(|n| self.at(a - 1 - n) == self.at(b - 1 - n)).count()
    }
}

/// Lengths of the sequences that are looked up, longest first.
const GRAMS: [usize; 2] = [4, 2];
/// Maximum number of equal tokens that are compared: more agreement does not make a draft likelier.
const LONG: usize = 16;
/// Number of classes of agreement: up to 3, 7 and 15 tokens, and more.
const CLASSES: usize = 4;
/// Initial chances: rather too low, since chances are learned even without running drafts.
const FIRST_CHANCES: [f32; CLASSES] = [0.1, 0.35, 0.7, 0.85];
/// Weight of the newest token in a chance. The first tokens weigh more: the initial chance counts as `KNOWN`
/// tokens.
const NEW: f32 = 1.0 / 16.0;
const KNOWN: f32 = 3.0;
/// Minimum number of tokens in a class for a request's chance to be learned from.
const ENOUGH: u32 = 8;
/// Bounds of the table's size, in entries.
const LEAST: usize = 64;
const MOST: usize = 1 << 16;
/// Number of output tokens that the table has room for from the start.
const OUTPUT: usize = 2048;

/// Likelihood that the next token of a draft is right, by class.
#[derive(Clone, Copy)]
pub(crate) struct Chances {
    right: [f32; CLASSES],
    tokens: [u32; CLASSES],
}

impl Default for Chances {
    fn default() -> Self {
        Self { right: FIRST_CHANCES, tokens: [0; CLASSES] }
    }
}

impl Chances {
    fn see(&mut self, class: usize, right: bool) {
        self.tokens[class] += 1;
        let new = NEW.max(1.0 / (KNOWN + self.tokens[class] as f32));
        self.right[class] += new * (f32::from(u8::from(right)) - self.right[class]);
    }

    /// Learns from the chances of an ended request.
    pub(crate) fn learn(&mut self, seen: &Self) {
        for class in (0..CLASSES).filter(|&class| seen.tokens[class] >= ENOUGH) {
            self.right[class] += (seen.right[class] - self.right[class]) / 2.0;
        }
    }
}

/// The last position of each of the `GRAMS` of a text. Each token costs a few reads and writes. If the text
/// outgrows the table, newer entries overwrite older ones.
pub(crate) struct Lookup {
    /// Position after the sequence, by hash; 0: none.
    table: Vec<u32>,
    entries: usize,
    /// Number of tokens read.
    seen: usize,
    /// Position of the token that is expected next; 0: none.
    next: usize,
    /// Number of tokens before it that agree with the last ones.
    agrees: usize,
    pub chances: Chances,
}

impl Lookup {
    pub(crate) fn new(prompt: usize, max_new: usize) -> Self {
        let entries = entries(prompt, max_new);
        Self { table: Vec::new(), entries, seen: 0, next: 0, agrees: 0, chances: Chances::default() }
    }

    /// Bytes of a look-up for a text of this size.
    pub(crate) fn bytes(prompt: usize, max_new: usize) -> usize {
        4 * entries(prompt, max_new)
    }

    /// Reads the tokens that came since the last call. Without memory for its table it expects nothing.
    pub(crate) fn read(&mut self, text: Text) {
        if self.table.is_empty() {
            if reserve(&mut self.table, self.entries, "the table of a look-up").is_err() {
                return;
            }
            self.table.resize(self.entries, 0);
        }
        while self.seen < text.len() {
            self.check(text);
            self.seen += 1;
            let searches = self.next == 0 && self.seen == text.len();
            self.enter(text, searches);
        }
    }

    /// Compares the token at `seen` with the expected one.
    fn check(&mut self, text: Text) {
        if self.next == 0 {
            return;
        }
        let right = text.at(self.next) == text.at(self.seen);
        self.chances.see(class(self.agrees), right);
        (self.next, self.agrees) = if right { (self.next + 1, self.agrees + 1) } else { (0, 0) };
    }

    /// Enters the sequences that end with the last token read. If `searches`, looks for an earlier occurrence of
    /// one of them.
    fn enter(&mut self, text: Text, searches: bool) {
        for length in GRAMS.into_iter().filter(|&length| length <= self.seen) {
            let place = &mut self.table[hash(text, self.seen - length, length) & (self.entries - 1)];
            let before = std::mem::replace(place, self.seen as u32) as usize;
            // Both sequences may share an entry, which then holds the longer one's new position.
            if searches && self.next == 0 && (1..self.seen).contains(&before) {
                let agrees = text.in_common(before, self.seen);
                if agrees >= length {
                    (self.next, self.agrees) = (before, agrees);
                }
            }
        }
    }

    /// Likelihood that each of the first `stands.len()` tokens of a draft is accepted together with all tokens
    /// before it; 0 without a draft.
    pub(crate) fn stands(&self, stands: &mut [f32; MAX_DRAFT]) {
        let mut all = if self.next == 0 { 0.0 } else { 1.0 };
        for (n, stands) in stands.iter_mut().enumerate() {
            all *= self.chances.right[class(self.agrees + n)];
            *stands = all;
        }
    }

    /// Drafts the next tokens.
    pub(crate) fn draft(&self, text: Text, draft: &mut [u32]) {
        for n in 0..draft.len() {
            let at = self.next + n;
            draft[n] = if at < text.len() { text.at(at) } else { draft[at - text.len()] };
        }
    }
}

fn entries(prompt: usize, max_new: usize) -> usize {
    (GRAMS.len() * (prompt + max_new.min(OUTPUT))).next_power_of_two().clamp(LEAST, MOST)
}

fn class(agrees: usize) -> usize {
    (agrees.max(2).ilog2() as usize - 1).min(CLASSES - 1)
}

/// Hash of the `length` tokens from `first` on.
fn hash(text: Text, first: usize, length: usize) -> usize {
    let mut hash = length as u64;
    for at in first..first + length {
        hash = (hash ^ u64::from(text.at(at))).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29);
    }
    (hash >> 20) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(prompt: &[u32], output: &[u32]) -> (Lookup, Vec<u32>) {
        let mut lookup = Lookup::new(prompt.len(), 100);
        for n in 0..=output.len() {
            lookup.read(Text { prompt, output: &output[..n] });
        }
        let mut stands = [0.0; MAX_DRAFT];
        lookup.stands(&mut stands);
        let mut draft = vec![0; if stands[0] > 0.0 { 6 } else { 0 }];
        lookup.draft(Text { prompt, output }, &mut draft);
        (lookup, draft)
    }

    #[test]
    fn a_draft_is_what_followed_the_longest_sequence_last() {
        // The last occurrence of 7 8 is before 1 2, and an earlier one follows 5 6.
        let prompt = [5, 6, 7, 8, 9, 3, 3, 7, 8, 1, 2, 4, 4, 4];
        assert_eq!(read(&prompt, &[10, 7, 8]).1, [1, 2, 4, 4, 4, 10]);
        assert_eq!(read(&prompt, &[5, 6, 7, 8]).1, [9, 3, 3, 7, 8, 1]);
        assert_eq!(read(&prompt, &[8, 7]).1, [0; 0], "nothing came before like that");
        assert_eq!(read(&[1], &[]).1, [0; 0]);
    }

    /// If the last four tokens and the last two have the same hash, the entry of the one must not count as an
    /// earlier occurrence of the other.
    #[test]
    fn a_text_is_not_found_in_itself() {
        let mut x = 1u32;
        for _ in 0..400 {
            let text: Vec<u32> = std::iter::repeat_with(|| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                x >> 8
            })
            .take(60)
            .collect();
            let (lookup, draft) = read(&text[..20], &text[20..]);
            assert!(lookup.next == 0 && draft.is_empty(), "no pair of {text:?} comes twice");
        }
    }

    #[test]
    fn a_loop_is_followed_beyond_its_end() {
        assert_eq!(read(&[1, 2], &[3, 4, 5, 3, 4]).1, [5, 3, 4, 5, 3, 4]);
        assert_eq!(read(&[1], &[2, 2, 2]).1, [2; 6]);
    }

    #[test]
    fn chances_follow_what_came_true() {
        let mut stands = [0.0; MAX_DRAFT];
        let same = read(&[1], &[2; 60]).0;
        same.stands(&mut stands);
        assert!(stands[0] > 0.95 && stands[7] > 0.7 && stands.is_sorted_by(|a, b| a >= b), "{stands:?}");
        // Every pair occurs again, but followed by a new token.
        let misleading: Vec<u32> = (0..60).flat_map(|n| [1, 2, 100 + n]).chain([1, 2]).collect();
        let wrong = read(&[1], &misleading).0;
        wrong.stands(&mut stands);
        assert!(stands[0] > 0.0 && stands[0] < 0.05, "{stands:?}");
        // The next request begins with the learned chances.
        let mut chances = Chances::default();
        (0..6).for_each(|_| chances.learn(&wrong.chances));
        assert!(chances.right[0] < 0.01 && chances.right[1..] == FIRST_CHANCES[1..], "{:?}", chances.right);
    }

    #[test]
    fn a_long_text_finds_what_came_lately() {
        let mut x = 7u32;
        let mut random = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            x >> 8
        };
        let prompt: Vec<u32> = (0..200_000).map(|_| random()).collect();
        let last = &prompt[199_000..199_010];
        let (lookup, draft) = read(&prompt, &last[..5]);
        assert_eq!(draft[..5], last[5..]);
        assert_eq!((4 * lookup.table.len(), lookup.table.len()), (Lookup::bytes(200_000, 100), MOST));
    }
}
