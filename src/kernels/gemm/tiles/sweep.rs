//! The sweep of weights over tokens, for all types except short blocks. It determines the contents of the
//! tiles, when steps are decoded, and in which order sums are added and outputs are written.
//!
//! A strip is sixteen or 32 weight rows. It is multiplied with as many tokens, one step of columns after
//! another. If these are all tokens, a step is decoded between the products of the step before, because bytes
//! that were just stored cannot be loaded as a tile without a stall. Otherwise some steps are decoded
//! together, and stay in the L1 cache while they are multiplied with all tokens. Sums are stored after a
//! step, and added after the products of the next step; if done sooner, both would stall.

use super::{DEPTH, SIDE, STEP, write};
use crate::kernels::gemm::driver::{Scratch, Task};
use crate::kernels::pool::buffer::{Line, grown};
use crate::kernels::simd::amx::{Set, Tiles};
use crate::kernels::simd::lanes::Lanes;
use std::ops::Range;

/// Number of steps that are decoded together, or a step and the next one.
const SPAN: usize = 2;

/// Sixteen rows of sixteen sums.
pub(super) type Tile = [Line; SIDE];

/// A step of a strip, with some tokens.
#[derive(Clone, Copy)]
pub(super) struct StripStep {
    /// First row of the strip.
    pub row: usize,
    /// Index of the first group of sixteen tokens.
    pub group: usize,
    pub step: usize,
    /// Number of this step among those that take turns in the buffers.
    turn: usize,
    /// Whether this is the first, and the last, of the steps that these tokens are multiplied with now.
    begins: bool,
    ends: bool,
}

/// The functions of a weight type that the sweep needs. All functions need the instructions of their set.
#[allow(clippy::missing_safety_doc)] // said here, once
pub(super) trait Kind: Sized {
    /// The activations, as tasks read them.
    type X<'a>;
    /// Lines per step of sixteen tokens, made by the type's `arrange`. A step has four parts.
    const TOKENS: usize;
    /// Lines of codes and of scales that `decode` makes per step of a strip.
    const CODES: usize;
    const SCALES: usize;
    /// Number of sixteens of rows in a strip, and of tokens at once. With two there are four tiles of sums: tile 2 l
    /// + r is of left l and right r. With one there are SUMS tiles, used as the type's products need them.
    const SIDES: usize = 2;
    const SUMS: usize = 4;
    /// Whether left tiles, and so the rows of sums, are tokens; otherwise they are weights.
    const TOKENS_LEFT: bool;
    /// Whether the sums of a row are integers and stay in tiles; otherwise `add` converts the sums of each step to
    /// floats.
    const WHOLE: bool;

    fn tokens(x: &Self::X<'_>) -> usize;
    /// Decodes some parts (quarters) of steps of a strip into codes and scales, for the rows that exist. Codes of
    /// missing rows are unspecified.
    #[inline(always)]
    unsafe fn decode<S: Set>(_: &Of<Self>, _row: usize, _parts: Range<usize>, _to: [&mut [Line]; 2]) {}
    /// Adds the products of one part with `N` times sixteen tokens to tiles.
    unsafe fn multiply<S: Set, const N: usize>(tiles: &mut S::Tiles, at: &At<Self>, part: usize);
    /// Adds the sums of a step to the totals of the steps before it; the first step initializes the totals.
    #[inline(always)]
    unsafe fn add<S: Set>(_: &At<Self>, _sums: &[Tile; 4], _totals: &mut [Tile]) {}
    /// Converts the sums of a tile to outputs.
    #[inline(always)]
    unsafe fn finish<S: Set>(_: &Of<Self>, _row: usize, _token: usize, _sums: &mut Tile) {}
}

/// A task with weights of this type.
pub(super) type Of<'a, K> = Task<'a, <K as Kind>::X<'a>>;

/// The operands at a `StripStep`.
pub(super) struct At<'s, 'a, K: Kind> {
    pub task: &'s Of<'a, K>,
    pub strip: StripStep,
    /// A step of sixteen tokens, and of the next sixteen; the same again if there are no others.
    pub x: [&'s [Line]; 2],
    pub codes: &'s [Line],
    pub scales: &'s [Line],
}

/// Both operands of a product.
struct Sides<'a, K: Kind> {
    task: &'a Of<'a, K>,
    arranged: &'a [Line],
    steps: usize,
    tokens: usize,
    /// Codes of `SPAN` steps, and scales of twice as many.
    codes: &'a mut [Line],
    scales: &'a mut [Line],
}

struct Sweep<'a, S: Set, K: Kind> {
    sides: Sides<'a, K>,
    tiles: S::Tiles,
    /// Tiles of sums of the last step.
    sums: &'a mut [Tile; 4],
    /// Sums so far: the tiles of a strip for each `SIDES` groups of tokens.
    totals: &'a mut [Tile],
    /// The step whose sums are still to be added, or whose outputs are still to be written.
    last: Option<StripStep>,
}

/// Computes `task` with any number of tokens.
///
/// # Safety
/// `S`'s instructions are available; this thread has tiles of `DEPTH`; `arranged` is the result of the
/// type's `arrange` for `task.x`.
#[inline(always)]
pub(super) unsafe fn run<'a, S: Set, K: Kind>(
    task: &'a Task<'a, K::X<'a>>,
    arranged: &'a [Line],
    scratch: &'a mut Scratch,
) {
    let (steps, tokens) = (task.matrix.cols.div_ceil(STEP), K::tokens(task.x));
    let groups = tokens.div_ceil(SIDE);
    assert_eq!(arranged.len(), groups * steps * K::TOKENS, "tokens in order");
    let tiles = 4 + groups.div_ceil(K::SIDES) * K::SIDES * K::SIDES;
    let (sums, totals) = grown(&mut scratch.partial, tiles * SIDE).as_chunks_mut().0.split_at_mut(4);
    let mut sweep = Sweep::<S, K> {
        sides: Sides {
            task,
            arranged,
            steps,
            tokens,
            codes: grown(&mut scratch.codes, SPAN * K::CODES),
            scales: grown(&mut scratch.scales, 2 * SPAN * K::SCALES),
        },
        // SAFETY: the caller's promise.
        tiles: unsafe { S::Tiles::new(DEPTH) },
        sums: sums.first_chunk_mut().expect("four"),
        totals,
        last: None,
    };
    // SAFETY: the caller's promise.
    unsafe { sweep.all() }
}

/// Runs `$call` for each tile of sums that is in use.
macro_rules! each {
    ($n:ident: $($number:literal)* => $t:ident, $call:expr) => {$(
        if used::<K, $n>($number) {
            const $t: usize = $number;
            $call
        }
    )*};
}

/// Whether a tile has sums if there are `N` times sixteen tokens.
#[inline(always)]
fn used<K: Kind, const N: usize>(tile: usize) -> bool {
    match (K::SIDES, N) {
        (1, _) => tile < K::SUMS,
        (_, 2) => true,
        _ if K::TOKENS_LEFT => tile < 2,
        _ => tile.is_multiple_of(2),
    }
}

impl<'a, K: Kind> Sides<'a, K> {
    #[inline(always)]
    fn at<const N: usize>(&self, strip: StripStep) -> At<'_, 'a, K> {
        let mut x = [self.arranged; 2];
        for (n, x) in x.iter_mut().enumerate() {
            *x = &self.arranged[((strip.group + n.min(N - 1)) * self.steps + strip.step) * K::TOKENS..]
                [..K::TOKENS];
        }
        let codes = &self.codes[strip.turn % SPAN * K::CODES..][..K::CODES];
        let scales = &self.scales[strip.turn % (2 * SPAN) * K::SCALES..][..K::SCALES];
        At { task: self.task, strip, x, codes, scales }
    }
}

impl<S: Set, K: Kind> Sweep<'_, S, K> {
    #[inline(always)]
    unsafe fn all(&mut self) {
        let (rows, steps, groups) =
            (self.sides.task.rows, self.sides.steps, self.sides.tokens.div_ceil(SIDE));
        // Strips of sixteen rows always decode ahead: the codes of two of their steps fill the L1 cache.
        let ahead = K::SIDES == 1 || groups <= 2;
        let span = match ahead {
            true if groups > K::SIDES => 1,
            true => steps,
            false => SPAN,
        };
        // SAFETY (of all): the caller's promise.
        unsafe {
            if ahead {
                self.decode(0, 0..4, 0);
            }
            for (nth, row) in (0..rows).step_by(K::SIDES * SIDE).enumerate() {
                for start in (0..steps).step_by(span) {
                    let end = steps.min(start + span);
                    if !ahead {
                        self.behind(); // this frees its scales
                        self.decode(row, 4 * start..4 * end, 0);
                    }
                    for group in (0..groups).step_by(K::SIDES) {
                        for step in start..end {
                            let turn = if ahead { nth * steps + step } else { step - start };
                            let strip = StripStep {
                                row,
                                group,
                                step,
                                turn,
                                begins: step == start,
                                ends: step + 1 == end,
                            };
                            let two = K::SIDES == 2 && groups - group > 1;
                            // Four copies, so that compilers prepare for decoding only in copies that decode.
                            match (ahead && group == 0, two) {
                                (true, false) => self.turn::<1>(strip, self.next(strip)),
                                (true, true) => self.turn::<2>(strip, self.next(strip)),
                                (false, false) => self.turn::<1>(strip, None),
                                (false, true) => self.turn::<2>(strip, None),
                            }
                        }
                    }
                }
            }
            self.behind();
        }
    }

    /// The next step, and the first row of its strip.
    #[inline(always)]
    fn next(&self, strip: StripStep) -> Option<(usize, usize)> {
        let (step, row) = (strip.step + 1, strip.row + K::SIDES * SIDE);
        match step < self.sides.steps {
            true => Some((strip.row, step)),
            false if row < self.sides.task.rows => Some((row, 0)),
            false => None,
        }
    }

    /// Multiplies a step, and decodes the next one meanwhile.
    #[inline(always)]
    unsafe fn turn<const N: usize>(&mut self, strip: StripStep, next: Option<(usize, usize)>) {
        // SAFETY (of all): the caller's promise.
        unsafe {
            if !K::WHOLE || strip.begins {
                self.begin::<N>(strip);
            }
            for part in 0..4 {
                if let Some((row, step)) = next {
                    self.decode(row, 4 * step + part..4 * step + part + 1, strip.turn + 1);
                }
                if strip.step + 1 == self.sides.steps {
                    // Outputs are far apart, and not in the caches.
                    for t in SIDE * strip.group + part * 4 * N..SIDE * strip.group + (part + 1) * 4 * N {
                        for line in 0..=K::SIDES {
                            S::Lanes::fetch(self.sides.task.place(t, strip.row).wrapping_add(64 * line));
                        }
                    }
                }
                K::multiply::<S, N>(&mut self.tiles, &self.sides.at::<N>(strip), part);
            }
            self.behind();
            if !K::WHOLE || strip.ends {
                self.keep::<N>(strip);
                self.last = Some(strip);
            }
        }
    }

    /// Decodes parts of steps into the buffers of turn `turn`, and of the turns after it.
    #[inline(always)]
    unsafe fn decode(&mut self, row: usize, parts: Range<usize>, turn: usize) {
        let codes = &mut self.sides.codes[turn % SPAN * K::CODES..];
        let scales = &mut self.sides.scales[turn % (2 * SPAN) * K::SCALES..];
        // SAFETY: the caller's promise.
        unsafe { K::decode::<S>(self.sides.task, row, parts, [codes, scales]) }
    }

    #[inline(always)]
    fn totals(&mut self, strip: StripStep) -> &mut [Tile] {
        &mut self.totals[strip.group * K::SIDES..][..K::SIDES * K::SIDES]
    }

    /// Loads the sums so far if whole rows are summed, else zeros.
    #[inline(always)]
    unsafe fn begin<const N: usize>(&mut self, strip: StripStep) {
        let from: *const u8 = self.totals(strip).as_ptr().cast();
        // SAFETY (of all): four tiles of sums.
        unsafe {
            if K::WHOLE && strip.step > 0 {
                each!(N: 0 1 2 3 => T, self.tiles.load::<T>(from.add(1024 * T), 64));
            } else {
                each!(N: 0 1 2 3 => T, self.tiles.zero::<T>());
            }
        }
    }

    #[inline(always)]
    unsafe fn keep<const N: usize>(&mut self, strip: StripStep) {
        let to = if K::WHOLE { self.totals(strip) } else { &mut self.sums[..] };
        let to: *mut u8 = to.as_mut_ptr().cast();
        // SAFETY (of all): room for four tiles.
        unsafe {
            each!(N: 0 1 2 3 => T, self.tiles.store::<T>(to.add(1024 * T), 64));
        }
    }

    /// Adds the sums that were kept last. After the last step of a row, writes the outputs.
    #[inline(always)]
    unsafe fn behind(&mut self) {
        let Some(strip) = self.last.take() else { return };
        let first = strip.group * K::SIDES;
        // SAFETY (of all): the caller's promise.
        unsafe {
            if !K::WHOLE {
                let totals = &mut self.totals[first..][..K::SIDES * K::SIDES];
                K::add::<S>(&self.sides.at::<1>(strip), self.sums, totals);
            }
            if strip.step + 1 < self.sides.steps {
                return;
            }
            for i in 0..K::SIDES * K::SIDES {
                let (left, right) = (i / K::SIDES, i % K::SIDES);
                let (panel, group) = if K::TOKENS_LEFT { (right, left) } else { (left, right) };
                let (row, token) = (strip.row + SIDE * panel, (strip.group + group) * SIDE);
                if row < self.sides.task.rows && token < self.sides.tokens {
                    K::finish::<S>(self.sides.task, row, token, &mut self.totals[first + i]);
                    let (outputs, tokens) = (&self.totals[first + i], self.sides.tokens);
                    if K::TOKENS_LEFT {
                        write::<S, true, _>(self.sides.task, outputs, (row, token), tokens);
                    } else {
                        write::<S, false, _>(self.sides.task, outputs, (row, token), tokens);
                    }
                }
            }
        }
    }
}
