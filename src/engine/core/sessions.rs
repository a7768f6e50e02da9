//! Sessions: kept when their request ends, saved and restored for hosts that ask.

use super::session_file;
use super::session_file::{Saved, Seen, Shape};
use super::*;
use crate::ops::StateRows;
use std::cell::RefCell;
use xxhash_rust::xxh64::xxh64;

/// Number of tokens whose K and V identify the model in a saved session.
const PROBE: u32 = 16;

impl Core {
    /// Keeps the computed KV blocks of an ending sequence if it belongs to a session.
    pub(super) fn keep_session(&mut self, seq: SeqId) {
        let Some(sequence) = self.sequences.get(seq) else { return };
        let Some(name) = &sequence.placement.session else { return };
        if let Err(error) = self.scheduler.keep_session(name, seq, &self.sequences) {
            self.shared.log.write(LOG_WARN, format!("session {name:?} is not kept: {error}"));
        }
    }

    /// Runs a call that a host thread waits for. Statistics and load are published before that thread
    /// continues.
    pub(crate) fn answer<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = panics::checked("a call", || call(self));
        self.publish();
        result
    }

    pub(crate) fn drop_session(&mut self, name: &str) -> Result<()> {
        if self.scheduler.drop_session(name) { Ok(()) } else { Err(no_session(name)) }
    }

    /// Forgets every prefix that no request holds.
    pub(crate) fn clear_cache(&mut self) {
        self.scheduler.cache_mut().clear();
        self.store.iter().for_each(|store| store.clear());
    }

    /// Number of bytes that `save_session` and `seal` produce.
    pub(crate) fn session_size(&mut self, name: &str) -> Result<usize> {
        let shape = self.shape()?;
        let session = self.scheduler.session(name).ok_or_else(|| no_session(name))?;
        Ok(session_file::size(&shape, session.contents.len(), session.pictures.len()))
    }

    /// Encodes a session, for `session_file::seal`.
    pub(crate) fn save_session(&mut self, name: &str) -> Result<Vec<u8>> {
        let shape = self.shape()?;
        let session = self.scheduler.session(name).ok_or_else(|| no_session(name))?;
        let eyes = self.shared.eyes.as_ref().filter(|_| !session.pictures.is_empty());
        let maker = eyes.map_or(0, |eyes| eyes.known.maker);
        let pictures = Seen { maker, spans: &session.pictures };
        let read =
            &mut |index: usize, out: &mut Vec<u8>| self.memory.read(Unit::Block, session.table[index], out);
        let mut out = session_file::encode(&shape, &session.contents, pictures, session.salt, read)?;
        session.state.map_or(Ok(()), |state| self.memory.read(Unit::State, state, &mut out))?;
        Ok(out)
    }

    /// Restores a session from the result of `session_file::unseal`.
    pub(crate) fn restore_session(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let shape = self.shape()?;
        let vocab = self.shared.loaded.model.facts().vocab_size;
        let mut saved = session_file::decode(content, &shape, vocab)?;
        self.know_pictures(&mut saved)?;
        let (memory, drafter) = (RefCell::new(&mut self.memory), &mut self.drafting.own_cache());
        let mut parts = saved.blocks.chunks_exact(shape.block_bytes as usize);
        let write = &mut |block| match parts.next() {
            Some(bytes) => {
                drafter.iter_mut().for_each(|drafter| drafter.forget(block));
                memory.borrow_mut().write(Unit::Block, block, bytes)
            }
            None => Err(Error::internal("a session has too few blocks")),
        };
        let write_state = &mut |state| memory.borrow_mut().write(Unit::State, state, saved.state);
        let Saved { tokens, pictures, salt, .. } = saved;
        let restored = self.scheduler.restore_session(name, tokens, pictures, salt, write, write_state);
        // Its blocks were written to at once.
        self.forget_leaving();
        restored
    }

    /// Gives the vectors of a saved session the contents that they have in this engine.
    fn know_pictures(&self, saved: &mut Saved) -> Result<()> {
        if saved.pictures.is_empty() {
            return Ok(());
        }
        let known = self.shared.eyes.as_ref().map(|eyes| &eyes.known);
        let Some(known) = known.filter(|known| known.maker == saved.maker) else {
            return Err(Error::invalid(
                "the session has pictures that another tower has seen, or this one in other sizes (picture_tokens, \
                 and in Gemma 4 the rows of a step)",
            ));
        };
        for span in &saved.pictures {
            let own = span.contents(known.hash(&span.digest));
            saved.tokens[span.at as usize..]
                .iter_mut()
                .zip(own)
                .for_each(|(token, content)| *token = content);
        }
        Ok(())
    }

    /// The shape that a saved session must match. The model is identified by its results: the K and V of a
    /// few tokens in a block of their own.
    pub(super) fn shape(&mut self) -> Result<Shape> {
        let layout = self.memory.layout();
        let (kind, block_size) = (layout.kv.kind, layout.kv.block_size as u32);
        let [block_bytes, state_bytes] = [Unit::Block, Unit::State].map(|unit| layout.bytes(unit) as u64);
        let fingerprint = self.fingerprint.map_or_else(|| self.probe(), Ok)?;
        self.fingerprint = Some(fingerprint);
        Ok(Shape { fingerprint, kind, block_size, block_bytes, state_bytes })
    }

    fn probe(&mut self) -> Result<u64> {
        let busy = |what| {
            let message = format!("every {what} is in use: saving a session takes one for a moment");
            Error::new(Status::Busy, message)
        };
        let cache = self.scheduler.cache_mut();
        let state = match cache.states.is_empty() {
            true => None,
            false => Some(cache.states.take().ok_or_else(|| busy("state"))?),
        };
        let result = match self.scheduler.cache_mut().take() {
            None => Err(busy("KV block")),
            Some(block) => {
                self.spill();
                let result = panics::checked("the forward pass", || self.probe_in(block, state));
                self.scheduler.cache_mut().release(block);
                result
            }
        };
        state.into_iter().for_each(|state| self.scheduler.cache_mut().states.release(state));
        result
    }

    fn probe_in(&mut self, block: u32, state: Option<u32>) -> Result<u64> {
        let vocab = self.shared.loaded.model.facts().vocab_size as u32;
        let layout = self.memory.layout();
        let (size, len) = (layout.kv.block_size as u32, layout.bytes(Unit::Block));
        let rows = PROBE.min(size).min(self.scheduler.config().max_batch_tokens);
        let mut bytes = Vec::new();
        reserve(&mut bytes, len, "a saved session")?;
        bytes.resize(len, 0);
        self.memory.write(Unit::Block, block, &bytes)?;
        for start in (0..PROBE).step_by(rows as usize) {
            let rows = rows.min(PROBE - start);
            let batch = &mut self.batch;
            batch.clear();
            batch.reserve(rows as usize, 1, 0)?;
            batch.push_seq(&[block], start, rows)?;
            batch.states.extend(state.map(|slot| StateRows { slot, ..StateRows::default() }));
            batch.tokens.extend((start..start + rows).map(|at| at * 7 % vocab));
            self.run_batch()?;
        }
        bytes.clear();
        self.memory.read(Unit::Block, block, &mut bytes)?;
        Ok(xxh64(&bytes, 0))
    }
}

fn no_session(name: &str) -> Error {
    Error::new(
        Status::NotFound,
        format!("there is no session {name:?}: it was dropped, or gave way to others"),
    )
}
