//! Depths of a model's drafts, in simulated time: how often they are accepted is drawn at random.

use super::*;
use crate::rng::Rng;

/// Nanoseconds of a step by its rows, and of a pass that drafts.
#[derive(Clone, Copy)]
struct Costs {
    step: fn(u64) -> u64,
    pass: u64,
}

/// Verifying costs little, as where a step reads its weights once.
const FLAT: Costs = Costs { step: |rows| 970_000 + 30_000 * rows, pass: 100_000 };
const STEEP: Costs = Costs { step: |rows| 750_000 + 250_000 * rows, pass: 100_000 };
/// Kernels take four rows at once, then eight.
const TILES: Costs = Costs { step: |rows| 900_000 + 250_000 * rows.div_ceil(4), pass: 60_000 };
/// An eighth of a step is fixed.
const DEAR: Costs = Costs { step: |rows| 125_000 + 875_000 * rows, pass: 200_000 };

/// How often a draft is right if those before it are, by its place.
type Rates = [f32; 4];

fn rate(rates: &Rates, place: usize) -> f32 {
    rates[place.min(3)]
}

impl Costs {
    fn of(&self, rows: u64, passes: u64) -> f64 {
        ((self.step)(rows) + passes * self.pass) as f64
    }

    /// Tokens per step without drafts, in its time, with the depth that is best for one sequence.
    fn best(&self, rates: &Rates) -> f64 {
        let (mut best, mut tokens, mut all) = (1.0f64, 1.0, 1.0);
        for depth in 1..=MAX_DRAFT as u64 {
            all *= f64::from(rate(rates, depth as usize - 1));
            tokens += all;
            best = best.max(tokens * self.of(1, 0) / self.of(1 + depth, depth));
        }
        best
    }
}

/// Requests that decode at the same time.
struct World {
    b: Bench,
    costs: Costs,
    rng: Rng,
    rates: Vec<Acceptance>,
    ns: f64,
    /// Of each request: its tokens, and its drafts in the last step.
    tokens: Vec<u32>,
    depths: Vec<u32>,
}

impl World {
    fn new(costs: Costs, sequences: u32, seed: u64) -> Self {
        let config = SchedulerConfig { blocks: 8000, max_step_ns: 1_000_000_000, ..config() };
        let (mut b, n) = (Bench::new(config), sequences as usize);
        (0..sequences).for_each(|seq| b.submit(seq, 4, 20_000));
        // The prompts
        b.plan();
        b.s.commit(&b.plan, (costs.step)(b.plan.work.rows), &b.texts);
        let rates = vec![Acceptance::default(); n];
        Self { b, costs, rng: Rng(seed), rates, ns: 0.0, tokens: vec![0; n], depths: vec![0; n] }
    }

    /// Runs `steps` steps in which the drafts of request `n` are right as often as `truth[n]` says. Returns the tokens
    /// per step without drafts, in its time, of each request.
    fn run(&mut self, steps: usize, truth: &[Rates]) -> Vec<f64> {
        let (tokens, ns) = (self.tokens.clone(), self.ns);
        (0..steps).for_each(|_| self.step(truth));
        let alone = self.costs.of(truth.len() as u64, 0);
        let per_step = |(now, then): (&u32, u32)| f64::from(now - then) * alone / (self.ns - ns);
        self.tokens.iter().zip(tokens).map(per_step).collect()
    }

    fn step(&mut self, truth: &[Rates]) {
        let Self { b, rates, rng, .. } = self;
        b.plan();
        let decodes = b.plan.entries.iter().enumerate().filter(|(_, entry)| entry.decode);
        let offer = |(at, entry): (usize, &PlanEntry)| Offer {
            at,
            stands: rates[entry.seq.0 as usize].stands(),
            most: MAX_DRAFT as u32,
            by_model: true,
            ..Offer::default()
        };
        let mut offers: Vec<Offer> = decodes.map(offer).collect();
        b.s.draft(&mut b.plan, &mut offers);
        b.s.check().unwrap();
        let passes = offers.iter().map(|offer| offer.depth).max().unwrap_or(0);
        for pass in 0..passes {
            let rows = offers.iter().filter(|offer| offer.depth > pass).count() as u64;
            b.s.drafted(Work { rows, positions: rows, keys: rows }, true, self.costs.pass);
        }
        for entry in &mut b.plan.entries {
            let n = entry.seq.0 as usize;
            let mut right = |place: &u32| {
                (rng.below(1 << 20) as f32) < rate(&truth[n], *place as usize) * (1 << 20) as f32
            };
            entry.accepted = (0..entry.drafts).take_while(|place| right(place)).count() as u32;
            rates[n].verified(entry.drafts, entry.accepted, false);
            self.tokens[n] += 1 + entry.accepted;
            self.depths[n] = entry.drafts;
        }
        let ns = (self.costs.step)(b.plan.work.rows);
        self.ns += ns as f64 + (u64::from(passes) * self.costs.pass) as f64;
        b.s.commit(&b.plan, ns, &b.texts);
    }

    /// The time that drafts took in `steps` steps, in steps without drafts. None is accepted.
    fn lost(&mut self, steps: usize) -> f64 {
        let before = self.ns;
        let sequences = self.tokens.len();
        self.run(steps, &vec![[0.0; 4]; sequences]);
        (self.ns - before) / self.costs.of(sequences as u64, 0) - steps as f64
    }
}

const EVEN: Rates = [0.8; 4];
/// As blocks of multi-token prediction that were trained for one token.
const FALLING: Rates = [0.8, 0.6, 0.4, 0.2];
const WEAK: Rates = [0.4, 0.3, 0.2, 0.1];

#[test]
fn a_models_drafts_gain_nearly_what_the_best_depth_gains() {
    for (name, costs) in [("flat", FLAT), ("steep", STEEP), ("tiles", TILES), ("dear", DEAR)] {
        for rates in [EVEN, FALLING, WEAK, [0.97; 4], [0.15; 4]] {
            let best = costs.best(&rates);
            let gains = (0..4).map(|seed| World::new(costs, 1, seed).run(1000, &[rates])[0]);
            let gain = gains.sum::<f64>() / 4.0;
            println!("{name}, {rates:?}: {gain:.3} of {best:.3}");
            assert!(gain > 0.93 * best, "{name}, {rates:?}: {gain:.3} of {best:.3}");
        }
    }
}

#[test]
fn drafts_of_a_model_that_is_never_right_lose_a_step_and_then_one_percent() {
    for costs in [FLAT, STEEP, TILES, DEAR] {
        for sequences in [1, 4] {
            let mut world = World::new(costs, sequences, 1);
            let mut lost = 0.0;
            for steps in 1..=1000 {
                lost += world.lost(1);
                assert!(lost < 1.0 + 0.012 * f64::from(steps), "{sequences}, {steps} steps: {lost}");
            }
            println!("{sequences}: {lost:.2} steps lost of 1000");
        }
    }
}

#[test]
fn depths_follow_what_was_accepted_lately() {
    for costs in [FLAT, TILES] {
        let mut world = World::new(costs, 1, 3);
        let best = costs.best(&EVEN);
        let gain = world.run(300, &[EVEN])[0];
        assert!(gain > 0.9 * best, "{gain} of {best}");
        // What drafts gained before pays for some more.
        let (turn, lost) = (world.lost(40), world.lost(500));
        println!("{turn:.2} steps lost in 40, then {lost:.2} in 500");
        assert!(turn < 5.0 && lost < 6.0, "{turn}, {lost}");
        world.run(150, &[EVEN]);
        let gain = world.run(200, &[EVEN])[0];
        assert!(gain > 0.9 * best, "{gain} of {best} after it came back");
    }
}

#[test]
fn each_request_has_a_depth_of_its_own() {
    let mut world = World::new(FLAT, 2, 5);
    let truth = [[0.9; 4], [0.02; 4]];
    world.run(200, &truth);
    let mut sums = [0, 0];
    for _ in 0..100 {
        world.step(&truth);
        sums.iter_mut().zip(&world.depths).for_each(|(sum, depth)| *sum += depth);
    }
    assert!(sums[0] > 250 && sums[1] < 30, "{sums:?} drafts in 100 steps");
}
