//! Decides which models are loaded, and which one is loaded or unloaded next. It has no clock and no thread: times
//! count from the server's start, and `turn` returns the next step.
use std::time::Duration;

/// The model always stays.
pub const FOREVER: Duration = Duration::MAX;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of loaded models. 0: no bound.
    pub loaded: usize,
    /// Maximum bytes of loaded models. 0: no bound.
    pub bytes: u64,
    /// How long an idle model stays if its last request did not say.
    pub idle: Duration,
}

/// The state of one model.
#[derive(Clone, Debug, Default)]
pub struct Residency {
    /// The model is loaded.
    pub here: bool,
    /// Size of the model's files.
    pub file_bytes: u64,
    /// Bytes that it will need in addition (`--kv-cache`).
    pub more_bytes: u64,
    /// Bytes that it was found to use while it is loaded.
    pub held_bytes: u64,
    /// Number of requests that hold it.
    users: usize,
    /// Time at which the last of them released it.
    used: Duration,
    /// How long it stays after that, if the last request said so.
    pub keep: Option<Duration>,
    /// Another model needs its room, so new requests wait.
    leaves: bool,
    /// The last attempt to load it lacked memory, and no model was unloaded since.
    short_of_memory: bool,
}

pub struct Residence {
    limits: Limits,
    pub models: Vec<Residency>,
}

/// The next thing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Rest,
    Load(usize),
    LetGo(usize),
    /// There is no room for the model, and nothing to unload.
    Refuse(usize),
}

impl Residency {
    fn bytes(&self) -> u64 {
        if self.here { self.file_bytes.max(self.held_bytes) } else { self.file_bytes }
    }

    /// Whether a request may have it at once.
    pub fn is_free(&self) -> bool {
        self.here && !self.leaves
    }
}

impl Residence {
    pub fn new(limits: Limits) -> Self {
        Self { limits, models: Vec::new() }
    }

    /// A request begins to hold the model, which is free.
    pub fn hold(&mut self, at: usize) {
        self.models[at].users += 1;
    }

    /// A request releases the model, and says how long it should stay.
    pub fn leave(&mut self, at: usize, keep: Option<Duration>, now: Duration) {
        let model = &mut self.models[at];
        model.keep = keep;
        model.users = model.users.saturating_sub(1);
        if model.users == 0 {
            model.used = now;
        }
    }

    /// The time that an idle model still stays without requests.
    pub fn left(&self, at: usize, now: Duration) -> Duration {
        let model = &self.models[at];
        let stays = model.keep.unwrap_or(self.limits.idle);
        let idle = if model.users > 0 { Duration::ZERO } else { now.saturating_sub(model.used) };
        if stays == FOREVER { FOREVER } else { stays.saturating_sub(idle) }
    }

    /// The time at which `turn` may have something to do even if nothing happens until then.
    pub fn due(&self, now: Duration) -> Option<Duration> {
        let idle = self.loaded().filter(|at| self.models[*at].users == 0);
        idle.map(|at| self.left(at, now)).filter(|left| *left != FOREVER).min()
    }

    /// Returns the next step. `wanted`: the unloaded model for which a request has waited longest.
    pub fn turn(&mut self, wanted: Option<usize>, now: Duration) -> Step {
        let Some(wanted) = wanted else {
            self.models.iter_mut().for_each(|model| model.leaves = false);
            let idle = self.loaded().find(|at| self.models[*at].users == 0 && self.left(*at, now).is_zero());
            return idle.map_or(Step::Rest, |at| self.let_go(at));
        };
        if self.fits(wanted) {
            return Step::Load(wanted);
        }
        match self.victim() {
            None => {
                self.models[wanted].short_of_memory = false;
                Step::Refuse(wanted)
            }
            // The requests that it is answering finish first.
            Some(at) if self.models[at].users > 0 => {
                self.models[at].leaves = true;
                Step::Rest
            }
            Some(at) => self.let_go(at),
        }
    }

    fn let_go(&mut self, at: usize) -> Step {
        self.models[at].here = false;
        Step::LetGo(at)
    }

    pub fn loaded(&self) -> impl Iterator<Item = usize> {
        (0..self.models.len()).filter(|at| self.models[*at].here)
    }

    fn fits(&self, wanted: usize) -> bool {
        let model = &self.models[wanted];
        let needs = model.file_bytes.saturating_add(model.more_bytes);
        let bytes = self.loaded().fold(needs, |sum, at| sum.saturating_add(self.models[at].bytes()));
        let count = 1 + self.loaded().count();
        let Limits { loaded, bytes: most, .. } = self.limits;
        !model.short_of_memory && (loaded == 0 || count <= loaded) && (most == 0 || bytes <= most)
    }

    /// The least recently used model; models in use come last.
    fn victim(&self) -> Option<usize> {
        self.loaded().min_by_key(|at| (self.models[*at].users > 0, self.models[*at].used))
    }

    pub fn has_come(&mut self, at: usize, now: Duration) {
        let model = &mut self.models[at];
        (model.here, model.used, model.keep, model.held_bytes) = (true, now, None, 0);
    }

    /// The model could not be loaded. True: try again once another one is unloaded, which may free enough memory.
    pub fn has_not_come(&mut self, at: usize, lacks_memory: bool) -> bool {
        self.models[at].short_of_memory = lacks_memory && self.victim().is_some();
        self.models[at].short_of_memory
    }

    pub fn has_gone(&mut self, at: usize) {
        self.models[at].leaves = false;
        self.models.iter_mut().for_each(|model| model.short_of_memory = false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn residence(models: usize, limits: Limits) -> Residence {
        let mut residence = Residence::new(limits);
        residence.models = vec![Residency { file_bytes: 100, ..Residency::default() }; models];
        residence
    }

    fn unbounded() -> Limits {
        Limits { loaded: 0, bytes: 0, idle: FOREVER }
    }

    fn load(residence: &mut Residence, at: usize, now: Duration) {
        assert_eq!(residence.turn(Some(at), now), Step::Load(at));
        residence.has_come(at, now);
    }

    #[test]
    fn the_least_used_one_goes() {
        let mut r = residence(3, Limits { loaded: 2, ..unbounded() });
        load(&mut r, 0, S);
        load(&mut r, 1, 2 * S);
        r.hold(0);
        r.leave(0, None, 3 * S);
        assert_eq!(r.turn(Some(2), 4 * S), Step::LetGo(1));
        r.has_gone(1);
        load(&mut r, 2, 4 * S);
        assert_eq!(r.loaded().collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn one_that_answers_goes_when_its_answers_are_over() {
        let mut r = residence(2, Limits { loaded: 1, ..unbounded() });
        load(&mut r, 0, S);
        r.hold(0);
        assert_eq!(r.turn(Some(1), S), Step::Rest);
        assert!(!r.models[0].is_free());
        r.leave(0, None, 2 * S);
        assert_eq!(r.turn(Some(1), 2 * S), Step::LetGo(0));
    }

    #[test]
    fn one_whose_room_nobody_wants_any_more_stays() {
        let mut r = residence(2, Limits { loaded: 1, ..unbounded() });
        load(&mut r, 0, S);
        r.hold(0);
        assert_eq!(r.turn(Some(1), S), Step::Rest);
        assert_eq!(r.turn(None, S), Step::Rest);
        assert!(r.models[0].is_free());
    }

    #[test]
    fn bytes_are_those_that_were_found_or_of_files() {
        let mut r = residence(2, Limits { bytes: 250, ..unbounded() });
        r.models[1].more_bytes = 30;
        load(&mut r, 0, S);
        r.models[0].held_bytes = 121;
        assert_eq!(r.turn(Some(1), S), Step::LetGo(0));
        r.has_gone(0);
        load(&mut r, 1, S);
        let mut small = residence(1, Limits { bytes: 99, ..unbounded() });
        assert_eq!(small.turn(Some(0), S), Step::Refuse(0));
        small.models[0].file_bytes = u64::MAX; // sums do not wrap
        small.models[0].more_bytes = u64::MAX;
        assert_eq!(small.turn(Some(0), S), Step::Refuse(0));
    }

    #[test]
    fn idle_ones_go_after_the_time_that_their_last_request_said() {
        let mut r = residence(1, Limits { idle: 10 * S, ..unbounded() });
        load(&mut r, 0, S);
        assert_eq!(r.due(S), Some(10 * S));
        r.hold(0);
        assert_eq!((r.due(20 * S), r.turn(None, 20 * S)), (None, Step::Rest));
        r.leave(0, Some(3 * S), 20 * S);
        assert_eq!((r.left(0, 22 * S), r.turn(None, 22 * S)), (S, Step::Rest));
        assert_eq!(r.turn(None, 23 * S), Step::LetGo(0));
        r.has_gone(0);
        load(&mut r, 0, 30 * S);
        r.hold(0);
        r.leave(0, Some(FOREVER), 31 * S);
        assert_eq!((r.due(1000 * S), r.turn(None, 1000 * S)), (None, Step::Rest));
    }

    #[test]
    fn one_that_lacks_memory_is_tried_again_once_another_is_gone() {
        let mut r = residence(2, unbounded());
        load(&mut r, 0, S);
        assert_eq!(r.turn(Some(1), S), Step::Load(1));
        assert!(r.has_not_come(1, true));
        assert_eq!(r.turn(Some(1), S), Step::LetGo(0));
        r.has_gone(0);
        assert_eq!(r.turn(Some(1), S), Step::Load(1));
        assert!(!r.has_not_come(1, true));
        assert!(!r.has_not_come(1, false));
    }
}
