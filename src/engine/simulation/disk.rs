//! The files of a prompt cache, in memory, which fail, tear and change as a real disk's never should.

use crate::cache::disk::{Claim, Files, Name};
use crate::rng::Rng;
use std::collections::BTreeMap;
use std::io::{Error, ErrorKind, Result};

pub struct Disk {
    files: BTreeMap<Name, Vec<u8>>,
    rng: Rng,
    /// One of this many calls fails in some way; 0: none.
    faults: u64,
    held: bool,
}

impl Disk {
    pub fn new(rng: Rng, faults: u64) -> Self {
        Self { files: BTreeMap::new(), rng, faults, held: false }
    }

    fn fails(&mut self) -> bool {
        self.faults > 0 && self.rng.one_in(self.faults)
    }

    fn fault(&mut self) -> Result<()> {
        match self.fails() {
            true => Err(Error::from(*self.rng.pick(&[ErrorKind::StorageFull, ErrorKind::NotFound]))),
            false => Ok(()),
        }
    }
}

impl Files for Disk {
    fn claim(&mut self) -> Claim {
        if self.fails() {
            self.held = false;
            return Claim::Denied;
        }
        match std::mem::replace(&mut self.held, true) {
            true => Claim::Held,
            false => Claim::New,
        }
    }

    fn release(&mut self) {
        self.held = false;
    }

    fn list(&mut self) -> Result<Vec<(Name, u64)>> {
        self.fault()?;
        Ok(self.files.iter().map(|(name, record)| (*name, record.len() as u64)).collect())
    }

    fn read(&mut self, name: Name, _: usize, out: &mut Vec<u8>) -> Result<()> {
        self.fault()?;
        // Sometimes another record in its place.
        let wrong = self.fails();
        let file = match wrong {
            true => self.files.values().next(),
            false => self.files.get(&name),
        };
        out.extend_from_slice(file.ok_or(ErrorKind::NotFound)?);
        if self.fails() {
            let at = self.rng.below(out.len() as u64) as usize;
            match self.rng.one_in(2) {
                true => out[at] ^= 1 << self.rng.below(8),
                false => out.truncate(at),
            }
        }
        Ok(())
    }

    fn write(&mut self, name: Name, record: &[u8]) -> Result<()> {
        self.fault()?;
        // A machine that lost its power may leave a part of a file.
        let len = if self.fails() { self.rng.below(record.len() as u64) as usize } else { record.len() };
        self.files.insert(name, record[..len].to_vec());
        Ok(())
    }

    fn remove(&mut self, name: Name) -> Result<()> {
        self.fault()?;
        self.files.remove(&name).map(drop).ok_or(ErrorKind::NotFound.into())
    }
}
