//! Records in the machine's memory, for engines whose KV cache is on a device; and before a folder, if there is one.

use super::folder::{Claim, Files};
use super::index::{Index, Name};
use std::collections::HashMap;
use std::io::{ErrorKind, Result};

pub struct Host {
    records: HashMap<Name, Vec<u8>>,
    /// Sizes and uses of `records`.
    index: Index,
    /// Maximum bytes.
    limit: u64,
    /// Has all records, also those that memory has no room for.
    below: Option<Box<dyn Files>>,
}

impl Host {
    pub fn new(limit: u64, below: Option<Box<dyn Files>>) -> Self {
        Self { records: HashMap::new(), index: Index::default(), limit, below }
    }

    /// Keeps a record, in place of those that were not used for the longest time. Without memory for it, does not.
    fn keep(&mut self, name: Name, record: &[u8]) -> Result<()> {
        let bytes = record.len() as u64;
        while self.index.bytes() + bytes > self.limit {
            let Some(oldest) = self.index.oldest() else { return Err(ErrorKind::OutOfMemory.into()) };
            self.forget(oldest);
        }
        let mut copy = Vec::new();
        let room = copy.try_reserve_exact(record.len()).and_then(|()| self.records.try_reserve(1));
        room.map_err(|_| ErrorKind::OutOfMemory)?;
        self.index.add(name, bytes).map_err(|_| ErrorKind::OutOfMemory)?;
        copy.extend_from_slice(record);
        self.records.insert(name, copy);
        Ok(())
    }

    fn forget(&mut self, name: Name) {
        self.index.remove(name);
        self.records.remove(&name);
    }
}

impl Files for Host {
    fn claim(&mut self) -> Claim {
        self.below.as_mut().map_or(Claim::Held, |below| below.claim())
    }

    fn release(&mut self) {
        self.records = HashMap::new();
        self.index.clear();
        self.below.iter_mut().for_each(|below| below.release());
    }

    fn list(&mut self) -> Result<Vec<(Name, u64)>> {
        match &mut self.below {
            Some(below) => below.list(),
            None => Ok(Vec::new()),
        }
    }

    fn read(&mut self, name: Name, most: usize, out: &mut Vec<u8>) -> Result<()> {
        if let Some(record) = self.records.get(&name) {
            out.try_reserve_exact(record.len()).map_err(|_| ErrorKind::OutOfMemory)?;
            out.extend_from_slice(record);
            self.index.touch(name);
            return Ok(());
        }
        let Some(below) = &mut self.below else { return Err(ErrorKind::NotFound.into()) };
        let begin = out.len();
        below.read(name, most, out)?;
        // Not kept is not lost.
        let _ = self.keep(name, &out[begin..]);
        Ok(())
    }

    fn write(&mut self, name: Name, record: &[u8]) -> Result<()> {
        let Some(below) = &mut self.below else { return self.keep(name, record) };
        below.write(name, record)?;
        let _ = self.keep(name, record);
        Ok(())
    }

    fn remove(&mut self, name: Name) -> Result<()> {
        self.forget(name);
        self.below.as_mut().map_or(Ok(()), |below| below.remove(name))
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;
    use std::sync::{Arc, Mutex};

    fn name(key: u64) -> Name {
        Name { kind: Kind::Block, key }
    }

    fn read(host: &mut Host, key: u64) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        host.read(name(key), 100, &mut out).ok().map(|()| out)
    }

    #[test]
    fn the_records_used_last_are_kept() {
        let mut host = Host::new(30, None);
        assert_eq!(host.claim(), Claim::Held);
        (1..=3).for_each(|key| host.write(name(key), &[key as u8; 10]).unwrap());
        assert_eq!(read(&mut host, 1), Some(vec![1; 10]));
        host.write(name(4), &[4; 10]).unwrap();
        let found: Vec<_> = (1..=4).map(|key| read(&mut host, key).is_some()).collect();
        assert_eq!(found, [true, false, true, true]);
        assert!(host.write(name(5), &[5; 31]).is_err());
        host.remove(name(1)).unwrap();
        assert_eq!(read(&mut host, 1), None);
    }

    #[derive(Default)]
    struct Counted {
        files: HashMap<Name, Vec<u8>>,
        reads: usize,
    }

    #[derive(Clone, Default)]
    struct Below(Arc<Mutex<Counted>>);

    impl Files for Below {
        fn claim(&mut self) -> Claim {
            Claim::Denied
        }
        fn release(&mut self) {}
        fn list(&mut self) -> Result<Vec<(Name, u64)>> {
            Ok(self.0.lock().unwrap().files.iter().map(|(name, bytes)| (*name, bytes.len() as u64)).collect())
        }
        fn read(&mut self, name: Name, _: usize, out: &mut Vec<u8>) -> Result<()> {
            let mut below = self.0.lock().unwrap();
            below.reads += 1;
            out.extend_from_slice(below.files.get(&name).ok_or(ErrorKind::NotFound)?);
            Ok(())
        }
        fn write(&mut self, name: Name, record: &[u8]) -> Result<()> {
            self.0.lock().unwrap().files.insert(name, record.to_vec());
            Ok(())
        }
        fn remove(&mut self, name: Name) -> Result<()> {
            self.0.lock().unwrap().files.remove(&name).map(drop).ok_or(ErrorKind::NotFound.into())
        }
    }

    #[test]
    fn what_memory_has_is_not_read_below() {
        let below = Below::default();
        let mut host = Host::new(20, Some(Box::new(below.clone())));
        assert_eq!(host.claim(), Claim::Denied);
        (1..=3).for_each(|key| host.write(name(key), &[key as u8; 10]).unwrap());
        assert_eq!(host.list().unwrap().len(), 3);
        assert_eq!((read(&mut host, 3), below.0.lock().unwrap().reads), (Some(vec![3; 10]), 0));
        assert_eq!((read(&mut host, 1), below.0.lock().unwrap().reads), (Some(vec![1; 10]), 1));
        assert_eq!((read(&mut host, 1), below.0.lock().unwrap().reads), (Some(vec![1; 10]), 1));
        host.remove(name(1)).unwrap();
        assert_eq!((read(&mut host, 1), host.list().unwrap().len()), (None, 2));
    }
}
