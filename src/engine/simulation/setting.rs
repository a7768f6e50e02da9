//! The settings of a world, drawn from its seed.

use crate::engine::api::{EngineConfig, KvType, RequestParams, Speculation, TIMEOUT_NONE};
use crate::engine::memory::plan::MemoryPlan;
use crate::engine::memory::states::StatePlan;
use crate::engine::request::account::RequestBytes;
use crate::rng::Rng;
use crate::schedule::PATIENCE_NS;

/// Number of elements of the model's hidden state.
pub const HIDDEN: usize = 16;

/// Value of `top_logprobs` that makes an output heavy.
pub const HEAVY: u32 = 8;

/// The most pictures of a prompt.
pub const MOST_PICTURES: u32 = 3;

#[derive(Clone, Copy, Debug)]
pub struct Setting {
    pub replicas: usize,
    pub queue: u32,
    /// 0: no bound.
    pub queue_tokens: u64,
    pub batch: u32,
    pub rows: u32,
    pub block_size: u32,
    pub blocks: u32,
    /// A prompt and its output together.
    pub max_sequence: u32,
    pub max_prompt: u32,
    pub max_new: u32,
    /// `u64::MAX`: none.
    pub budget: u64,
    pub max_unread: u64,
    pub max_wait_us: u32,
    pub max_step_ms: u32,
    pub target_itl_ms: u32,
    pub ageing_ms: u32,
    pub default_timeout_ms: u32,
    pub kv_events: u32,
    pub idle_release_ms: u64,
    /// Nanoseconds of a pass, and of each of its rows.
    pub cost: [u64; 2],
    /// One of this many passes fails in some way; 0: none.
    pub faults: u64,
    /// Events are delivered, not polled.
    pub callback: bool,
    /// Outputs take a large part of the budget.
    pub heavy: bool,
    pub speculation: Speculation,
    /// Slots for states of a recurrent layer; 0: the model has none.
    pub states: usize,
    /// Sequences whose states a draft model keeps; 0: it has none.
    pub drafting: usize,
    /// Bytes of a prompt cache on disk; 0: none.
    pub disk: u64,
    /// One of this many turns reads or writes a record.
    pub disk_pace: u64,
    /// The model sees pictures.
    pub sees: bool,
}

impl Setting {
    pub fn draw(rng: &mut Rng) -> Self {
        let block_size = *rng.pick(&[16, 16, 16, 32]);
        let most = *rng.pick(&[8, 30, 62]);
        let blocks = 2 + rng.below(most) as u32;
        let max_sequence = (block_size * blocks).min(20 + rng.below(140) as u32);
        let max_prompt = 1 + rng.below(u64::from(max_sequence) * 2 / 3) as u32;
        let max_new = 1 + rng.below(u64::from(max_sequence)) as u32;
        let batch = 1 + rng.below(8) as u32;
        let longest = *rng.pick(&[3, 12, 40, 40]);
        let heavy = rng.one_in(2);
        let mut params = RequestParams::default();
        (params.sampling.logprobs, params.sampling.top_logprobs) = (heavy, if heavy { HEAVY } else { 0 });
        let bytes = RequestBytes::new(&params, max_prompt as usize, 1, HIDDEN);
        let one = bytes.reserved() + u64::from(max_new) * bytes.token;
        let budget = match rng.below(5) {
            0 => u64::MAX,
            n => one * [1, 1, 2, 4][n as usize - 1] + rng.below(one),
        };
        let some = |rng: &mut Rng, one_in: u64, most: u64| match rng.one_in(one_in) {
            true => 1 + rng.below(most) as u32,
            false => 0,
        };
        let drawn = Self {
            replicas: *rng.pick(&[1, 1, 2, 3]),
            queue: 1 + rng.below(longest) as u32,
            queue_tokens: some(rng, 3, 3 * u64::from(max_prompt)).into(),
            batch,
            rows: batch + rng.below(64) as u32,
            block_size,
            blocks,
            max_sequence,
            max_prompt,
            max_new,
            budget,
            max_unread: some(rng, 2, 1500).into(),
            max_wait_us: some(rng, 3, 5_000),
            max_step_ms: 20 + rng.below(200) as u32,
            target_itl_ms: if rng.one_in(4) { 20 + rng.below(100) as u32 } else { 0 },
            ageing_ms: rng.below(20) as u32 * 500,
            default_timeout_ms: some(rng, 5, 30_000),
            kv_events: some(rng, 3, 40),
            idle_release_ms: some(rng, 2, 2_000).into(),
            cost: [10_000_000 + rng.below(40_000_000), rng.below(1_000_000)],
            faults: *rng.pick(&[0, 10, 40, 200]),
            callback: rng.one_in(5),
            heavy,
            speculation: *rng.pick(&[
                Speculation::Off,
                Speculation::Lookup,
                Speculation::Auto,
                Speculation::Model,
            ]),
            states: if rng.one_in(2) { 1 + rng.below(16) as usize } else { 0 },
            drafting: if rng.one_in(2) { 1 + rng.below(8) as usize } else { 0 },
            disk: if rng.one_in(2) { 1 + rng.below(1 << 20) } else { 0 },
            disk_pace: *rng.pick(&[1, 1, 3, 30]),
            sees: rng.one_in(2),
        };
        if drawn.disk > 0 { drawn.pressed() } else { drawn }
    }

    /// Little memory for long prompts: prefixes leave it, and are worth a read.
    fn pressed(self) -> Self {
        Self {
            max_prompt: self.max_prompt.max(self.max_sequence * 2 / 3).max(1),
            blocks: self.blocks.min(2 + 2 * self.max_sequence / self.block_size),
            ..self
        }
    }

    pub fn config(&self) -> EngineConfig {
        EngineConfig {
            threads: 1,
            max_batch_size: self.batch,
            max_batch_tokens: self.rows,
            context_length: self.max_sequence,
            kv_block_size: self.block_size,
            max_unread_bytes: self.max_unread,
            kv_events_capacity: self.kv_events,
            snapshot_interval: 16,
            queue_capacity: self.queue,
            queue_token_capacity: self.queue_tokens,
            max_wait_us: self.max_wait_us,
            max_step_ms: self.max_step_ms,
            target_itl_ms: self.target_itl_ms,
            priority_ageing_ms: self.ageing_ms,
            default_timeout_ms: self.default_timeout_ms,
            idle_release_ms: self.idle_release_ms,
            speculation: Some(self.speculation),
            on_event: if self.callback { Some(Box::new(|_| ())) } else { None },
            ..EngineConfig::default()
        }
    }

    /// Only the first replica has the budget; the others have no limit.
    pub fn memory(&self, replica: usize) -> MemoryPlan {
        MemoryPlan {
            weights: 0,
            workspace: 0,
            kv: 0,
            index: 0,
            kv_type: KvType::F32,
            blocks: self.blocks as usize,
            states: self.state_plan(),
            max_sequence: self.max_sequence as usize,
            limit: if self.budget == u64::MAX || replica > 0 { 0 } else { self.budget },
        }
    }

    fn state_plan(&self) -> StatePlan {
        let running = self.states.min(self.batch as usize);
        StatePlan { slots: self.states, running, drafted: 30, drafting: self.drafting, bytes: 0 }
    }

    /// Milliseconds to a request's deadline; 0: none.
    pub fn timeout_ms(&self, asked: u32) -> u64 {
        match asked {
            0 => self.default_timeout_ms.into(),
            TIMEOUT_NONE => 0,
            ms => ms.into(),
        }
    }

    /// Maximum number of turns that a request may take for itself and for each one in front of it, if the host
    /// polls and frees everything: as in `tests/all/schedule_simulation`, and once more for pauses, for a grant or
    /// for a poller.
    pub fn turns_each(&self) -> u64 {
        let rows = u64::from(self.max_sequence);
        let patience = PATIENCE_NS / self.cost[0] + 1;
        let behind = if self.target_itl_ms == 0 { 1 } else { u64::from(self.batch) };
        // A picture takes at least a turn for each step of the tower.
        let pictures = if self.sees { u64::from(MOST_PICTURES) * 40 } else { 0 };
        rows * (1 + behind) + patience + pictures
    }
}
