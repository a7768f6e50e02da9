//! Sessions: kept when their request ends, saved and restored for hosts that ask.

use super::session_file;
use super::session_file::Shape;
use super::*;
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
    pub fn answer<T>(&mut self, call: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        let result = panics::catch(|| call(self))
            .unwrap_or_else(|text| Err(Error::internal(format!("a call panicked: {text}"))));
        self.tell();
        result
    }

    pub fn drop_session(&mut self, name: &str) -> Result<()> {
        if self.scheduler.drop_session(name) { Ok(()) } else { Err(no_session(name)) }
    }

    /// Forgets every prefix that no request holds.
    pub fn clear_cache(&mut self) {
        self.scheduler.cache_mut().clear();
    }

    /// Number of bytes that `save_session` and `seal` produce.
    pub fn session_size(&mut self, name: &str) -> Result<usize> {
        let shape = self.shape()?;
        let session = self.scheduler.session(name).ok_or_else(|| no_session(name))?;
        Ok(session_file::size(&shape, session.tokens.len()))
    }

    /// Encodes a session, for `session_file::seal`.
    pub fn save_session(&mut self, name: &str) -> Result<Vec<u8>> {
        let shape = self.shape()?;
        let session = self.scheduler.session(name).ok_or_else(|| no_session(name))?;
        let read = &mut |index: usize, out: &mut Vec<u8>| self.kv.read_block(session.table[index], out);
        session_file::encode(&shape, &session.tokens, session.salt, read)
    }

    /// Restores a session from the result of `session_file::unseal`.
    pub fn restore_session(&mut self, name: &str, content: &[u8]) -> Result<()> {
        let shape = self.shape()?;
        let vocab = self.shared.loaded.model.facts().vocab_size;
        let saved = session_file::decode(content, &shape, vocab)?;
        let (kv, drafter) = (&mut self.kv, &mut self.drafting.model);
        let mut parts = saved.blocks.chunks_exact(shape.block_bytes as usize);
        let write = &mut |block| match parts.next() {
            Some(bytes) => {
                drafter.iter_mut().for_each(|drafter| drafter.forget(block));
                kv.write_block(block, bytes)
            }
            None => Err(Error::internal("a session has too few blocks")),
        };
        self.scheduler.restore_session(name, saved.tokens, saved.salt, write)
    }

    /// The shape that a saved session must match. The model is identified by its results: the K and V of a
    /// few tokens in a block of their own.
    fn shape(&mut self) -> Result<Shape> {
        let (kind, block_size) = (self.kv.layout.kind, self.kv.layout.block_size as u32);
        let block_bytes = self.kv.block_len() as u64;
        let fingerprint = self.fingerprint.map_or_else(|| self.probe(), Ok)?;
        self.fingerprint = Some(fingerprint);
        Ok(Shape { fingerprint, kind, block_size, block_bytes })
    }

    fn probe(&mut self) -> Result<u64> {
        let block = self.scheduler.cache_mut().take().ok_or_else(|| {
            Error::new(Status::Busy, "every KV block is in use: saving a session takes one for a moment")
        })?;
        let result = panics::catch(|| self.probe_in(block))
            .unwrap_or_else(|text| Err(Error::internal(format!("the forward pass panicked: {text}"))));
        self.scheduler.cache_mut().release(block);
        result
    }

    fn probe_in(&mut self, block: u32) -> Result<u64> {
        let vocab = self.shared.loaded.model.facts().vocab_size as u32;
        let rows = PROBE.min(self.kv.layout.block_size as u32).min(self.scheduler.config().max_batch_tokens);
        let mut bytes = Vec::new();
        reserve(&mut bytes, self.kv.block_len(), "a saved session")?;
        bytes.resize(self.kv.block_len(), 0);
        self.kv.write_block(block, &bytes)?;
        for start in (0..PROBE).step_by(rows as usize) {
            let rows = rows.min(PROBE - start);
            let batch = &mut self.batch;
            batch.clear();
            batch.reserve(rows as usize, 1, 0)?;
            batch.push_seq(&[block], start, rows)?;
            batch.tokens.extend((start..start + rows).map(|at| at * 7 % vocab));
            self.run_batch()?;
        }
        bytes.clear();
        self.kv.read_block(block, &mut bytes)?;
        Ok(xxh64(&bytes, 0))
    }
}

fn no_session(name: &str) -> Error {
    Error::new(
        Status::NotFound,
        format!("there is no session {name:?}: it was dropped, or gave way to others"),
    )
}
