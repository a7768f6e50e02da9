//! Finished sequences whose blocks are kept under a name: for a chat's next turn, or to be saved.
//!
//! The blocks of a session are held, so they cannot be evicted. All sessions together hold at most half of the
//! blocks; if they need more, the least recently used session is dropped first. Sessions are also dropped if a
//! sequence that runs alone lacks blocks.

use super::{Scheduler, SeqId, Tokens};
use crate::base::{Error, Result, Status, reserve, reserved};
use crate::cache::{BlockTable, ContentId, Found, NONE, PictureSpan, Snapshot, TreePosition, chain};
use std::collections::HashMap;

/// A prefix whose blocks are held.
pub struct Session {
    pub contents: Vec<ContentId>,
    /// Those of the contents, in order.
    pub pictures: Vec<PictureSpan>,
    pub salt: u64,
    /// Its blocks, in order of positions.
    pub table: BlockTable,
    /// Slot of the state after them, in a model with recurrent layers.
    pub state: Option<u32>,
    /// Value of `Sessions::uses` when it was last used.
    used: u64,
}

#[derive(Default)]
pub(super) struct Sessions {
    by_name: HashMap<Box<str>, Session>,
    uses: u64,
    blocks: usize,
    /// Number of held states.
    states: usize,
}

impl Scheduler {
    /// Keeps the indexed blocks of `seq` under `name`, in place of any session with that name. The sequence is
    /// running and about to be cancelled. Does nothing for a sequence that shares nothing.
    pub fn keep_session(&mut self, name: &str, seq: SeqId, tokens: &dyn Tokens) -> Result<()> {
        if self.block_table(seq).is_empty() || !self.slots[seq].request.reuse.shared {
            return Ok(());
        }
        self.check_states_room()?;
        self.store_tail(seq, tokens, true);
        let (state, positions) = self.known_state(seq);
        let salt = self.slots[seq].request.reuse.salt;
        let blocks = self.blocks_for(positions);
        if blocks == 0 || blocks > self.session_room() {
            return Ok(());
        }
        let mut known = Vec::new();
        reserve(&mut known, positions as usize, SESSION)?;
        known.extend((0..positions).map(|at| tokens.content(seq, at)));
        let pictures = tokens.pictures(seq, positions)?;
        let mut session = self.new_session(name, known, pictures, salt)?;
        session.table.extend_from_slice(&self.block_table(seq)[..blocks]);
        session.state = state;
        self.cache.retain(&session.table);
        state.into_iter().for_each(|state| self.cache.states.hold(state));
        self.add_session(name, session);
        Ok(())
    }

    /// The positions of a running sequence that are indexed, and the state after them. In a model with recurrent
    /// layers, these are the positions up to the deepest known state; none if sessions may hold no states.
    fn known_state(&mut self, seq: SeqId) -> (Option<u32>, u32) {
        let (size, slot) = (self.config.block_size, &self.slots[seq]);
        let (full, state) = (slot.indexed as usize, slot.recurrent);
        let table = self.lanes.table(slot.lane);
        let tail = table.get(full).map_or(0, |&block| self.cache.indexed(block));
        if state == NONE {
            return (None, full as u32 * size + tail);
        }
        let part = table.get(full).map(|block| (*block, tail)).filter(|(_, tail)| *tail > 0);
        let mut own = std::mem::take(&mut self.found);
        own.clear();
        if reserve(&mut own, full, SESSION).is_err() {
            return (None, 0);
        }
        own.extend_from_slice(&table[..full]);
        if !slot.stale {
            self.store_state(seq, self.slots[seq].computed, state);
        }
        let found = self.cache.cut_to_state(Found { blocks: full, part, ..Found::default() }, &mut own);
        self.found = own;
        (found.state, found.positions(size))
    }

    /// Creates a session with memory for its blocks, and reserves memory for its entry.
    fn new_session(
        &mut self,
        name: &str,
        contents: Vec<ContentId>,
        pictures: Vec<PictureSpan>,
        salt: u64,
    ) -> Result<Session> {
        let mut table = BlockTable::new();
        reserve(&mut table, self.blocks_for(contents.len() as u32), SESSION)?;
        reserved(self.sessions.by_name.try_reserve(1), SESSION, name.len())?;
        Ok(Session { contents, pictures, salt, table, state: None, used: 0 })
    }

    /// Adds a session that holds its blocks. Drops the old session with its name, and others if it needs their room.
    fn add_session(&mut self, name: &str, mut session: Session) {
        self.drop_session(name);
        let (blocks, states) = (session.table.len(), usize::from(session.state.is_some()));
        let fits = |all: &Sessions, room: usize, states_room: usize| {
            all.blocks + blocks <= room && all.states + states <= states_room
        };
        while !fits(&self.sessions, self.session_room(), self.states_room()) && self.drop_oldest_session() {}
        self.sessions.uses += 1;
        session.used = self.sessions.uses;
        self.sessions.blocks += blocks;
        self.sessions.states += states;
        self.sessions.by_name.insert(name.into(), session);
    }

    /// Creates a session of `contents`, with their `pictures`. `write` fills its blocks one after the other, then
    /// `write_state` its state in a model with recurrent layers. `MemoryLimit` if other sessions or running sequences
    /// leave too few of them.
    pub fn restore_session(
        &mut self,
        name: &str,
        contents: Vec<ContentId>,
        pictures: Vec<PictureSpan>,
        salt: u64,
        write: &mut dyn FnMut(u32) -> Result<()>,
        write_state: &mut dyn FnMut(u32) -> Result<()>,
    ) -> Result<()> {
        self.check_states_room()?;
        let (blocks, room) = (self.blocks_for(contents.len() as u32), self.session_room());
        // Drops no session unless that makes enough room.
        let enough = blocks <= room.min(self.cache.pool().available() + self.sessions.blocks);
        while enough && blocks > self.cache.pool().available() && self.drop_oldest_session() {}
        let available = self.cache.pool().available();
        if blocks > room || blocks > available {
            let message = format!(
                "a session of {blocks} KV blocks: sessions may hold {room} together, and {available} are not in use"
            );
            return Err(Error::new(Status::MemoryLimit, message));
        }
        let mut session = self.new_session(name, contents, pictures, salt)?;
        let result = self.fill(&mut session, write).and_then(|()| self.fill_state(&mut session, write_state));
        match result {
            Ok(()) => self.add_session(name, session),
            Err(_) => self.let_go(session),
        }
        result
    }

    /// Takes a slot for a session's state, which `write_state` fills.
    fn fill_state(&mut self, session: &mut Session, write: &mut dyn FnMut(u32) -> Result<()>) -> Result<()> {
        if !self.has_states() {
            return Ok(());
        }
        self.drop_saves();
        while self.sessions.states >= self.states_room() && self.drop_oldest_session() {}
        let state = self.cache.states.take().ok_or_else(no_state)?;
        session.state = Some(state);
        write(state)?;
        let at = (session.contents.len() as u32 - 1) % self.config.block_size + 1;
        let block = session.table.last().copied().filter(|block| self.cache.indexed(*block) >= at);
        let Some(block) = block else { return Ok(()) };
        if !self.cache.states.store(state, Snapshot { block, at })
            && let Some((_, same)) = self.cache.states.deepest(block, at)
        {
            // Hold the state that later requests find.
            self.cache.states.hold(same);
            self.cache.states.release(state);
            session.state = Some(same);
        }
        Ok(())
    }

    /// `MemoryLimit` if sessions need states and may hold none.
    fn check_states_room(&self) -> Result<()> {
        if self.has_states() && self.states_room() == 0 { Err(no_state()) } else { Ok(()) }
    }

    fn let_go(&mut self, mut session: Session) {
        self.cache.release_all(&mut session.table);
        session.state.into_iter().for_each(|state| self.cache.states.release(state));
    }

    /// Takes blocks for a session, which `write` fills, and adds them to the index.
    fn fill(&mut self, session: &mut Session, write: &mut dyn FnMut(u32) -> Result<()>) -> Result<()> {
        let Session { contents, salt, table, .. } = session;
        let (salt, size) = (*salt, self.config.block_size as usize);
        let (mut parent, mut parent_key) = (NONE, salt);
        let mut indexed = true;
        for part in contents.chunks(size) {
            let Some(block) = self.cache.take() else {
                return Err(Error::internal("KV blocks that were available are not"));
            };
            table.push(block);
            write(block)?;
            let place = TreePosition { salt, parent, parent_key };
            if !indexed {
                continue;
            }
            if part.len() < size {
                self.cache.store_part(block, place, part, true);
                break;
            }
            let key = chain(parent_key, part);
            match self.cache.store(block, place, part, key) {
                Some(stored) => {
                    table.pop();
                    table.push(stored);
                    (parent, parent_key) = (stored, key);
                }
                // Other contents have this key: later blocks are held, but cannot be found.
                None => indexed = false,
            }
        }
        Ok(())
    }

    /// Maximum number of blocks that sessions may hold.
    fn session_room(&self) -> usize {
        self.cache.pool().total() / 2
    }

    /// Maximum number of states that sessions may hold: running sequences need the others, and fetches have some.
    fn states_room(&self) -> usize {
        let others = self.config.max_batch_size as usize + self.fetch_states().count();
        self.cache.states.total().saturating_sub(others)
    }

    /// Number of states that nobody needs to run.
    pub(super) fn state_room(&self) -> usize {
        self.states_room().saturating_sub(self.sessions.states)
    }

    /// Marks a session as used, so that it is not the oldest.
    pub fn touch_session(&mut self, name: &str) {
        if let Some(session) = self.sessions.by_name.get_mut(name) {
            self.sessions.uses += 1;
            session.used = self.sessions.uses;
        }
    }

    /// False if there is no session with this name.
    pub fn drop_session(&mut self, name: &str) -> bool {
        let Some(session) = self.sessions.by_name.remove(name) else { return false };
        self.sessions.blocks -= session.table.len();
        self.sessions.states -= usize::from(session.state.is_some());
        self.let_go(session);
        true
    }

    /// Drops the least recently used session. False if there is none.
    pub(super) fn drop_oldest_session(&mut self) -> bool {
        let oldest = self.sessions.by_name.iter().min_by_key(|(_, session)| session.used);
        let Some(name) = oldest.map(|(name, _)| name.clone()) else { return false };
        self.events.dropped_sessions += 1;
        self.drop_session(&name)
    }

    pub fn session(&self, name: &str) -> Option<&Session> {
        self.sessions.by_name.get(name)
    }

    pub(super) fn session_tables(&self) -> impl Iterator<Item = &BlockTable> {
        self.sessions.by_name.values().map(|session| &session.table)
    }

    pub(super) fn session_states(&self) -> impl Iterator<Item = u32> {
        self.sessions.by_name.values().filter_map(|session| session.state)
    }

    /// Number of sessions, and of the blocks that they hold.
    pub fn session_counts(&self) -> (usize, usize) {
        (self.sessions.by_name.len(), self.sessions.blocks)
    }
}

fn no_state() -> Error {
    let message = "a session needs a state beside those of running requests, and memory has no room for it";
    Error::new(Status::MemoryLimit, message)
}

const SESSION: &str = "a session";
