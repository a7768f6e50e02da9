//! Bounds on the intersections of a grammar's terminals.
//!
//! derivre looks for a text that a terminal matches by following derivatives. A derivative is a list of byte sets with
//! what remains after each, and that of an intersection is the product of its parts' lists: it is computed in one
//! step, which makes no hash table, so `text::watch` cannot stop it. Twenty patterns that each may or may not begin at
//! a byte have 2^20 elements.

use super::source::refused;
use crate::base::{Error, Result};
use crate::text::watch;
use llguidance::derivre::raw::ExprSet;
use llguidance::derivre::{ExprRef, RegexAst, RegexBuilder};
use std::collections::HashMap;

/// Parts of one intersection: a step makes an intersection of each number of them.
const MOST_PARTS: usize = 100;
/// Limit on the choices of one byte set from each part of an intersection such that they have a byte in
/// common, and on their sum over all intersections. A step has at most this many elements times the number of
/// byte classes, which is some tens.
const MOST_CHOICES: u64 = 50_000;
const MOST_IN_ALL: u64 = 500_000;

/// For each byte, how many byte sets of an expression have it.
type Overlaps = [u64; 256];

struct Products<'a> {
    exprs: &'a ExprSet,
    /// Choices of the intersections so far.
    choices: HashMap<ExprRef, u64>,
    overlaps: HashMap<ExprRef, Box<Overlaps>>,
    /// The walk in which an expression was last visited.
    visited: Vec<u32>,
    walks: u32,
}

/// Bounds the intersection of a schema's patterns, within which llguidance looks for a text as it reads the schema;
/// with a `length` if it has one.
pub(super) fn check_patterns(patterns: &[&str], length: bool) -> Result<()> {
    if patterns.len() > MOST_PARTS {
        return Err(too_many(patterns.len()));
    }
    let length = length.then(|| RegexAst::Regex("(?s:.{2,9})".to_owned()));
    let all = patterns.iter().map(|pattern| RegexAst::SearchRegex((*pattern).to_owned())).chain(length);
    let mut builder = RegexBuilder::new();
    match builder.mk(&RegexAst::And(all.collect())) {
        Ok(_) => check(builder.exprset()),
        // llguidance reports a pattern that is wrong.
        Err(_) => Ok(()),
    }
}

/// Bounds each intersection. Fails with `InvalidArgument` if one is too large.
pub(super) fn check(exprs: &ExprSet) -> Result<()> {
    let mut products = Products {
        exprs,
        choices: HashMap::new(),
        overlaps: HashMap::new(),
        visited: vec![0; exprs.len()],
        walks: 0,
    };
    let mut all = 0u64;
    // Arguments have lower numbers than the expressions that they belong to; 0 is none.
    for expr in (1..exprs.len()).map(|id| ExprRef::new(id as u32)) {
        if kind(exprs, expr) != Kind::Intersection {
            continue;
        }
        let parts = exprs.get_args(expr);
        if parts.len() > MOST_PARTS {
            return Err(too_many(parts.len()));
        }
        let choices = products.of(parts)?;
        all = all.saturating_add(choices);
        if choices > MOST_CHOICES || all > MOST_IN_ALL {
            return Err(refused("the patterns that one text has to match are too complex together"));
        }
        products.choices.insert(expr, choices);
    }
    Ok(())
}

fn too_many(patterns: usize) -> Error {
    refused(format!("one text has to match {patterns} patterns, more than {MOST_PARTS}"))
}

#[derive(PartialEq)]
enum Kind {
    Bytes,
    Set,
    Number,
    Complement,
    Intersection,
    /// An expression composed of its arguments.
    Other,
}

/// derivre does not export the type of its tags, so this reads their numbers (`ExprTag`, derivre's src/ast.rs).
fn kind(exprs: &ExprSet, expr: ExprRef) -> Kind {
    match exprs.get_tag(expr) as u8 {
        3 | 5 => Kind::Bytes,
        4 => Kind::Set,
        6 => Kind::Number,
        8 => Kind::Complement,
        12 => Kind::Intersection,
        _ => Kind::Other,
    }
}

impl Products<'_> {
    /// Choices of one byte set from each of `parts`, at the byte with the most.
    fn of(&mut self, parts: &[ExprRef]) -> Result<u64> {
        let mut product = [1u64; 256];
        for part in parts {
            if !self.overlaps.contains_key(part) {
                let overlaps = self.walk(*part)?;
                self.overlaps.insert(*part, overlaps);
            }
            for (product, overlap) in product.iter_mut().zip(self.overlaps[part].iter()) {
                *product = product.saturating_mul((*overlap).max(1));
            }
        }
        Ok(product.into_iter().max().unwrap_or(1))
    }

    /// The byte sets in `part`. Derivatives have the same ones, or unions of some.
    fn walk(&mut self, part: ExprRef) -> Result<Box<Overlaps>> {
        self.walks += 1;
        let mut overlaps: Box<Overlaps> = Box::new([0; 256]);
        // Single bytes are counted together, since at most one of them is the current byte.
        let (mut everywhere, mut bytes) = (0u64, 0u64);
        let mut left = vec![part];
        while let Some(expr) = left.pop() {
            if watch::is_over() {
                return Err(refused("its terminals are too complex"));
            }
            if std::mem::replace(&mut self.visited[expr.as_usize()], self.walks) == self.walks {
                continue;
            }
            match kind(self.exprs, expr) {
                Kind::Bytes | Kind::Number => bytes = 1,
                Kind::Set => {
                    let set = self.exprs.get(expr);
                    let has = |(byte, _): &(usize, &mut u64)| set.matches_byte(*byte as u8);
                    overlaps.iter_mut().enumerate().filter(has).for_each(|(_, overlap)| *overlap += 1);
                }
                // Its derivative's byte sets have no byte in common.
                Kind::Complement => {
                    everywhere = everywhere.saturating_add(1);
                    continue;
                }
                Kind::Intersection => {
                    let choices = self.choices.get(&expr).copied().unwrap_or(1);
                    everywhere = everywhere.saturating_add(choices);
                    continue;
                }
                Kind::Other => {}
            }
            left.extend_from_slice(self.exprs.get_args(expr));
        }
        overlaps.iter_mut().for_each(|overlap| *overlap = overlap.saturating_add(everywhere + bytes));
        Ok(overlaps)
    }
}
