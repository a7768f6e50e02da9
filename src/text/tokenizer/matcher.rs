//! Untrusted patterns, searched for in counted steps.
//!
//! A `tokenizer.json` may hold any pattern, and regex engines bound only a single search. A pattern that scans the
//! whole rest of a text for each character it finds takes hours for a long text, and no engine counts that. So
//! patterns that do not belong to a known model run here: by backtracking, with fancy-regex's parser and
//! semantics, and with a limit on the total steps for a text.

use crate::base::{Error, Result, Status, reserve};
use fancy_regex::{Assertion, Expr, LookAround, Regex};

/// Steps for a text: a base, and a number for each byte. Known rules take about ten per byte.
const STEPS: (u64, u64) = (4 << 20, 128);
/// Steps that a class test without a table counts for.
const TEST_STEPS: u64 = 8;
/// Maximum number of a pattern's instructions, and maximum nesting of look-arounds and atomic groups.
const MAX_PROGRAM: usize = 1 << 14;
const MAX_NESTED: usize = 16;

/// An instruction at a position of the text.
enum Step {
    /// Matches a character of this class, then continues with the next step.
    One(u16),
    /// Tries these two, in this order.
    Either(u32, u32),
    Go(u32),
    At(Assertion),
    /// Searches for a match of the steps from the next one up to an `End`, from here or from `back` characters
    /// before. Continues at `then` if the result is as `wanted`.
    Look {
        wanted: bool,
        back: Option<usize>,
        then: u32,
    },
    /// Takes the first match of the steps from the next one up to an `End`, and continues at `then`.
    Once {
        then: u32,
    },
    End,
}

/// A class of characters, as the regex crate understands it.
struct Class {
    written: String,
    ascii: [bool; 128],
    others: Regex,
}

impl Class {
    fn new(written: String) -> Compiled<Self> {
        let others = Regex::new(&format!("^(?:{written})$")).map_err(|e| e.to_string())?;
        let ascii = std::array::from_fn(|c| is_match(&others, c as u8 as char));
        Ok(Self { written, ascii, others })
    }

    fn has(&self, c: char) -> bool {
        match self.ascii.get(c as usize) {
            Some(known) => *known,
            None => is_match(&self.others, c),
        }
    }
}

/// A result, or the reason of a refusal.
type Compiled<T> = std::result::Result<T, String>;

fn is_match(regex: &Regex, c: char) -> bool {
    regex.is_match(c.encode_utf8(&mut [0; 4])).unwrap_or(false)
}

/// A compiled pattern.
pub(super) struct Matcher {
    steps: Vec<Step>,
    classes: Vec<Class>,
    /// Word characters, which define word boundaries.
    word: Class,
}

impl Matcher {
    /// Compiles a pattern. The error is the reason why it is refused.
    pub(super) fn new(pattern: &str) -> Compiled<Self> {
        let tree = Expr::parse_tree(pattern).map_err(|e| e.to_string())?;
        let word = Class::new(r"\w".into())?;
        let mut matcher = Self { steps: Vec::new(), classes: Vec::new(), word };
        matcher.compile(&tree.expr, 0)?;
        matcher.push(Step::End)?;
        Ok(matcher)
    }

    fn push(&mut self, step: Step) -> Compiled<usize> {
        if self.steps.len() == MAX_PROGRAM {
            return Err(format!("it has more than {MAX_PROGRAM} steps"));
        }
        self.steps.push(step);
        Ok(self.steps.len() - 1)
    }

    fn here(&self) -> u32 {
        self.steps.len() as u32
    }

    fn class(&mut self, written: String) -> Compiled<()> {
        let known = self.classes.iter().position(|class| class.written == written);
        let at = match known {
            Some(at) => at,
            None => {
                self.classes.push(Class::new(written)?);
                self.classes.len() - 1
            }
        };
        self.push(Step::One(at as u16)).map(drop)
    }

    fn compile(&mut self, expr: &Expr, nested: usize) -> Compiled<()> {
        match expr {
            Expr::Empty => Ok(()),
            Expr::Any { newline } => self.class(if *newline { "(?s:.)" } else { "." }.into()),
            Expr::Literal { val, casei } => val.chars().try_for_each(|c| {
                let escaped = fancy_regex::escape(c.encode_utf8(&mut [0; 4])).into_owned();
                self.class(if *casei { format!("(?i:{escaped})") } else { escaped })
            }),
            Expr::Delegate { inner, size: 1, casei } => {
                self.class(if *casei { format!("(?i:{inner})") } else { inner.clone() })
            }
            Expr::Concat(parts) => parts.iter().try_for_each(|part| self.compile(part, nested)),
            Expr::Alt(ways) => self.alternatives(ways, nested),
            Expr::Group(inner) => self.compile(inner, nested),
            Expr::Repeat { child, lo, hi, greedy } => self.repeat(child, *lo, *hi, *greedy, nested),
            Expr::Assertion(
                at @ (Assertion::StartText
                | Assertion::EndText
                | Assertion::StartLine { crlf: false }
                | Assertion::EndLine { crlf: false }
                | Assertion::WordBoundary
                | Assertion::NotWordBoundary),
            ) => self.push(Step::At(*at)).map(drop),
            Expr::LookAround(inner, look) => {
                let wanted = matches!(look, LookAround::LookAhead | LookAround::LookBehind);
                let back = match look {
                    LookAround::LookAhead | LookAround::LookAheadNeg => None,
                    _ => match widths(inner) {
                        (least, most) if least == most => Some(least),
                        _ => return Err("it looks behind by a varying length".into()),
                    },
                };
                self.nested(inner, nested, |then| Step::Look { wanted, back, then })
            }
            Expr::AtomicGroup(inner) => self.nested(inner, nested, |then| Step::Once { then }),
            _ => {
                Err("it has a part that no tokenizer needs (a reference, a condition, an odd boundary)"
                    .into())
            }
        }
    }

    fn nested(&mut self, inner: &Expr, nested: usize, step: impl Fn(u32) -> Step) -> Compiled<()> {
        if nested == MAX_NESTED {
            return Err(format!(
                "more than {MAX_NESTED} groups that look around or are atomic in each other"
            ));
        }
        let at = self.push(Step::End)?;
        self.compile(inner, nested + 1)?;
        self.push(Step::End)?;
        self.steps[at] = step(self.here());
        Ok(())
    }

    fn alternatives(&mut self, ways: &[Expr], nested: usize) -> Compiled<()> {
        let mut ends = Vec::new();
        for (at, way) in ways.iter().enumerate() {
            if at + 1 == ways.len() {
                self.compile(way, nested)?;
                break;
            }
            let split = self.push(Step::End)?;
            self.compile(way, nested)?;
            ends.push(self.push(Step::End)?);
            self.steps[split] = Step::Either(split as u32 + 1, self.here());
        }
        let end = self.here();
        ends.into_iter().for_each(|at| self.steps[at] = Step::Go(end));
        Ok(())
    }

    fn repeat(&mut self, child: &Expr, lo: usize, hi: usize, greedy: bool, nested: usize) -> Compiled<()> {
        for _ in 0..lo {
            self.compile(child, nested)?;
        }
        let either = |stay: u32, leave: u32| match greedy {
            true => Step::Either(stay, leave),
            false => Step::Either(leave, stay),
        };
        if hi == usize::MAX {
            if widths(child).0 == 0 {
                return Err("it repeats without end what may be empty".into());
            }
            let split = self.push(Step::End)?;
            self.compile(child, nested)?;
            self.push(Step::Go(split as u32))?;
            self.steps[split] = either(split as u32 + 1, self.here());
            return Ok(());
        }
        let mut splits = Vec::new();
        for _ in lo..hi {
            splits.push(self.push(Step::End)?);
            self.compile(child, nested)?;
        }
        let end = self.here();
        splits.into_iter().for_each(|at| self.steps[at] = either(at as u32 + 1, end));
        Ok(())
    }

    /// Returns every match in `text` and the parts between matches, in order. `TooLong` if that takes more steps
    /// than a text of its length may.
    pub(super) fn cut(&self, text: &str) -> Result<Vec<((usize, usize), bool)>> {
        let mut search = Search { matcher: self, text, stack: Vec::new(), left: allowed(text) };
        let mut pieces = Vec::new();
        let mut push = |piece| -> Result<()> {
            reserve(&mut pieces, 1, "pieces of a text")?;
            pieces.push(piece);
            Ok(())
        };
        let (mut from, mut done, mut last) = (0, 0, None);
        while let Some((start, end)) = search.find(from)? {
            // An empty match right after another match does not count.
            from =
                if start == end { end + text[end..].chars().next().map_or(1, char::len_utf8) } else { end };
            if start != end || Some(end) != last {
                if done < start {
                    push(((done, start), false))?;
                }
                push(((start, end), true))?;
                (done, last) = (end, Some(end));
            }
            if from > text.len() {
                break;
            }
        }
        if done < text.len() || text.is_empty() {
            push(((done, text.len()), false))?;
        }
        Ok(pieces)
    }
}

fn allowed(text: &str) -> u64 {
    STEPS.0 + STEPS.1 * text.len() as u64
}

/// Minimum and maximum number of characters that it matches; `usize::MAX` if there is no maximum.
fn widths(expr: &Expr) -> (usize, usize) {
    let sum = |(a, b): (usize, usize), (c, d): (usize, usize)| (a.saturating_add(c), b.saturating_add(d));
    match expr {
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) => (0, 0),
        Expr::Any { .. } | Expr::Delegate { .. } => (1, 1),
        Expr::Literal { val, .. } => (val.chars().count(), val.chars().count()),
        Expr::Concat(parts) => parts.iter().map(widths).fold((0, 0), sum),
        Expr::Alt(ways) => {
            let wider = |(a, b): (usize, usize), (c, d): (usize, usize)| (a.min(c), b.max(d));
            ways.iter().map(widths).reduce(wider).unwrap_or((0, usize::MAX))
        }
        Expr::Group(inner) | Expr::AtomicGroup(inner) => widths(inner),
        Expr::Repeat { child, lo, hi, .. } => {
            let (least, most) = widths(child);
            (least.saturating_mul(*lo), most.saturating_mul(*hi))
        }
        _ => (0, usize::MAX),
    }
}

struct Search<'a> {
    matcher: &'a Matcher,
    text: &'a str,
    /// Alternatives to go back to: step and position.
    stack: Vec<(u32, u32)>,
    left: u64,
}

impl Search<'_> {
    /// The first match that begins at `from` or later.
    fn find(&mut self, from: usize) -> Result<Option<(usize, usize)>> {
        let rest = &self.text[from..];
        for start in rest.char_indices().map(|(at, _)| from + at).chain([self.text.len()]) {
            if let Some(end) = self.run(0, start)? {
                return Ok(Some((start, end)));
            }
        }
        Ok(None)
    }

    fn spend(&mut self, steps: u64) -> Result<()> {
        match self.left.checked_sub(steps) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Error::new(
                Status::TooLong,
                format!(
                    "a pattern of the model's tokenizer takes more than {} steps for a text of {} bytes",
                    allowed(self.text),
                    self.text.len()
                ),
            )),
        }
    }

    /// End of a match from `step` at `place`. Recurses as deep as groups nest.
    fn run(&mut self, step: u32, place: usize) -> Result<Option<usize>> {
        let (matcher, base) = (self.matcher, self.stack.len());
        let (mut step, mut place) = (step, place);
        loop {
            self.spend(1)?;
            let next = match &matcher.steps[step as usize] {
                Step::One(class) => {
                    self.one(&matcher.classes[*class as usize], place)?.map(|end| (step + 1, end))
                }
                Step::Either(first, second) => {
                    reserve(&mut self.stack, 1, "a pattern's search")?;
                    self.stack.push((*second, place as u32));
                    Some((*first, place))
                }
                Step::Go(to) => Some((*to, place)),
                Step::At(what) => self.holds(*what, place).then_some((step + 1, place)),
                Step::Look { wanted, back, then } => {
                    let found = match self.before(place, back.unwrap_or(0)) {
                        Some(from) => self.run(step + 1, from)?.is_some(),
                        None => false,
                    };
                    (found == *wanted).then_some((*then, place))
                }
                Step::Once { then } => self.run(step + 1, place)?.map(|end| (*then, end)),
                Step::End => {
                    self.stack.truncate(base);
                    return Ok(Some(place));
                }
            };
            (step, place) = match next {
                Some(next) => next,
                None if self.stack.len() == base => return Ok(None),
                None => self.stack.pop().map_or((step, place), |(step, place)| (step, place as usize)),
            };
        }
    }

    /// The end of the character at `place`, if it is in `class`.
    fn one(&mut self, class: &Class, place: usize) -> Result<Option<usize>> {
        let Some(c) = self.text[place..].chars().next() else { return Ok(None) };
        if !c.is_ascii() {
            self.spend(TEST_STEPS)?;
        }
        Ok(class.has(c).then_some(place + c.len_utf8()))
    }

    /// The position `count` characters before `place`.
    fn before(&self, place: usize, count: usize) -> Option<usize> {
        match count {
            0 => Some(place),
            _ => self.text[..place].char_indices().rev().nth(count - 1).map(|(at, _)| at),
        }
    }

    fn holds(&self, what: Assertion, place: usize) -> bool {
        let (before, behind) = (self.text[..place].chars().next_back(), self.text[place..].chars().next());
        let is_word = |c: Option<char>| c.is_some_and(|c| self.matcher.word.has(c));
        match what {
            Assertion::StartText => before.is_none(),
            Assertion::EndText => behind.is_none(),
            Assertion::StartLine { .. } => before.is_none_or(|c| c == '\n'),
            Assertion::EndLine { .. } => behind.is_none_or(|c| c == '\n'),
            Assertion::WordBoundary => is_word(before) != is_word(behind),
            _ => is_word(before) == is_word(behind),
        }
    }
}
