use super::*;
use crate::base::Error;
use crate::cache::content::ContentId;
use crate::cache::disk::Folder;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

const SIZES: Sizes = Sizes { block_size: 4, block_bytes: 100, state_bytes: 50 };
const SCOPE: u64 = 9;

struct Temporary(PathBuf);

impl Temporary {
    fn new(name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bn-cache-{name}-{}-{n}", std::process::id()));
        Folder::make(&path).unwrap();
        Self(path)
    }

    fn scope(&self) -> PathBuf {
        self.0.join(format!("{SCOPE:016x}"))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn bounds(bytes: u64, buffers: u64) -> Bounds {
    Bounds { bytes, records: 1000, buffers }
}

fn open_with(path: &Path, limit: u64, buffers: u64) -> Arc<Store> {
    let files = Box::new(Folder::new(path, SCOPE));
    Arc::new(Store::open(files, SCOPE, SIZES, bounds(limit, buffers), 2).unwrap().without_thread())
}

fn open(path: &Path) -> Arc<Store> {
    open_with(path, 1 << 20, 1 << 20)
}

fn place(kind: Kind, key: u64) -> Place {
    let contents = [key as u32, 2, 3, 4].map(ContentId::from).to_vec();
    Place { kind, salt: 1, parent_key: 2, key, contents }
}

fn put(store: &Store, kind: Kind, key: u64) {
    let bytes = if kind == Kind::Block { 100 } else { 50 };
    let fill = |out: &mut Vec<u8>| {
        out.resize(out.len() + bytes, key as u8);
        Ok(())
    };
    store.put(&place(kind, key), false, fill).unwrap();
}

fn work(store: &Store) -> usize {
    (0..).take_while(|_| store.work(&|_| ())).count()
}

/// What arrives for an order of this record.
fn get(store: &Arc<Store>, place: Place) -> Option<Vec<u8>> {
    let mut port = Port { store: store.clone(), replica: 1 };
    port.order(7, 3, place).unwrap();
    let woken = AtomicUsize::new(9);
    assert!(store.work(&|replica| woken.store(replica, Ordering::Relaxed)));
    assert_eq!(woken.into_inner(), 1);
    assert!(store.arrival(0).is_none(), "another replica's");
    let arrival = store.arrival(1).unwrap();
    assert_eq!((arrival.ticket, arrival.index), (7, 3));
    arrival.payload().map(<[u8]>::to_vec)
}

#[test]
fn records_outlive_the_store() {
    let folder = Temporary::new("outlive");
    let store = open(&folder.0);
    put(&store, Kind::Block, 1);
    put(&store, Kind::Block, 1);
    put(&store, Kind::State, 1);
    assert_eq!(work(&store), 2, "a record that is queued is not queued again");
    put(&store, Kind::Block, 1);
    assert_eq!(work(&store), 0, "nor one that is written");
    drop(store);
    let store = open(&folder.0);
    let port = Port { store: store.clone(), replica: 0 };
    assert!(port.has(Name { kind: Kind::Block, key: 1 }) && !port.has(Name { kind: Kind::Block, key: 2 }));
    assert_eq!(get(&store, place(Kind::Block, 1)), Some(vec![1; 100]));
    assert_eq!(get(&store, place(Kind::State, 1)), Some(vec![1; 50]));
    assert_eq!(get(&store, place(Kind::Block, 2)), None);
    let counts = store.counts();
    assert_eq!((counts.records, counts.reads, counts.damaged), (2, 2, 0));
    assert_eq!(counts.bytes, counts.read_bytes);
}

#[test]
fn the_least_recently_used_records_give_way() {
    let folder = Temporary::new("limit");
    let one = SIZES.of(Kind::Block) as u64;
    let store = open_with(&folder.0, 3 * one, 1 << 20);
    (1..=3).for_each(|key| put(&store, Kind::Block, key));
    work(&store);
    assert!(get(&store, place(Kind::Block, 1)).is_some());
    put(&store, Kind::Block, 4);
    work(&store);
    let found: Vec<_> = (1..=4).map(|key| get(&store, place(Kind::Block, key)).is_some()).collect();
    assert_eq!(found, [true, false, true, true]);
    assert_eq!((store.counts().evicted, store.counts().bytes), (1, 3 * one));
    assert_eq!(fs::read_dir(folder.scope()).unwrap().count(), 1 + 3, "the lock and three records");
}

#[test]
fn the_number_of_records_is_bounded_too() {
    let folder = Temporary::new("records");
    let files = Box::new(Folder::new(&folder.0, SCOPE));
    let few = Bounds { records: 2, ..bounds(1 << 20, 1 << 20) };
    let store = Arc::new(Store::open(files, SCOPE, SIZES, few, 2).unwrap().without_thread());
    (1..=4).for_each(|key| put(&store, Kind::Block, key));
    work(&store);
    assert_eq!((store.counts().records, store.counts().evicted), (2, 2));
    assert_eq!(SIZES.bounds(1 << 40, 9600).memory(), 2 * 9600 + 9600);
    assert_eq!(SIZES.bounds(1000, 1).records, 1);
}

#[test]
fn damaged_files_are_misses_and_go() {
    let folder = Temporary::new("damage");
    let store = open(&folder.0);
    put(&store, Kind::Block, 1);
    work(&store);
    let file = folder.scope().join("b0000000000000001");
    let whole = fs::read(&file).unwrap();
    let damages: [fn(&mut Vec<u8>); 4] =
        [|file| file.truncate(60), |file| file[70] ^= 1, Vec::clear, |file| file.push(0)];
    for damage in damages {
        let mut damaged = whole.clone();
        damage(&mut damaged);
        fs::write(&file, damaged).unwrap();
        let store = open_without_lock_of(store.clone(), &folder);
        assert_eq!(get(&store, place(Kind::Block, 1)), None);
        assert_eq!(store.counts().damaged, 1);
        assert!(!store.knows(Name { kind: Kind::Block, key: 1 }));
    }
    drop(store);
    fs::write(&file, [whole.as_slice(), &[0; 1 << 20]].concat()).unwrap();
    let store = open(&folder.0);
    assert_eq!(get(&store, place(Kind::Block, 1)), None, "not read to its end");
    drop(store);
    fs::write(&file, &whole[..whole.len() - 1]).unwrap();
    let store = open(&folder.0);
    assert_eq!(get(&store, place(Kind::Block, 1)), None);
    assert!(!file.exists(), "the process that writes removes it");
}

/// A second store on the folder while `_first` has its lock.
fn open_without_lock_of(_first: Arc<Store>, folder: &Temporary) -> Arc<Store> {
    let store = open(&folder.0);
    assert!(store.failure().unwrap().contains("another process writes"));
    store
}

#[test]
fn one_store_writes_and_others_read_until_it_ends() {
    let folder = Temporary::new("two");
    let first = open(&folder.0);
    put(&first, Kind::Block, 1);
    work(&first);
    let second = open_without_lock_of(first.clone(), &folder);
    assert_eq!(get(&second, place(Kind::Block, 1)), Some(vec![1; 100]));
    put(&second, Kind::Block, 2);
    work(&second);
    assert_eq!((second.counts().dropped, second.counts().records), (1, 1));
    put(&first, Kind::Block, 3);
    work(&first);
    drop(first);
    put(&second, Kind::Block, 2);
    work(&second);
    assert_eq!(second.counts().records, 3, "it writes, and has found what the first one wrote");
    assert_eq!(second.failure(), None, "told once");
}

#[test]
fn unfinished_files_go_and_foreign_ones_stay() {
    let folder = Temporary::new("unfinished");
    fs::create_dir_all(folder.scope()).unwrap();
    for file in ["new-b0000000000000001", "mine.txt", "b1"] {
        fs::write(folder.scope().join(file), "x").unwrap();
    }
    let store = open(&folder.0);
    assert_eq!(store.counts().records, 0);
    let mut left: Vec<_> =
        fs::read_dir(folder.scope()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, ["b1", "lock", "mine.txt"]);
}

#[test]
fn clear_forgets_what_is_written_and_what_is_queued() {
    let folder = Temporary::new("clear");
    let store = open(&folder.0);
    put(&store, Kind::Block, 1);
    work(&store);
    put(&store, Kind::Block, 2);
    store.clear();
    assert_eq!(work(&store), 1, "the files are removed");
    assert_eq!(store.counts().records, 0);
    assert_eq!(fs::read_dir(folder.scope()).unwrap().count(), 1, "the lock");
    put(&store, Kind::Block, 2);
    work(&store);
    assert!(get(&store, place(Kind::Block, 2)).is_some());
}

#[test]
fn a_full_queue_drops_or_waits() {
    let folder = Temporary::new("queue");
    let one = SIZES.of(Kind::Block) as u64;
    let store = open_with(&folder.0, 1 << 20, 2 * one);
    (1..=3).for_each(|key| put(&store, Kind::Block, key));
    assert_eq!(store.counts().dropped, 1);
    let fill = |out: &mut Vec<u8>| {
        out.resize(out.len() + 100, 0);
        Ok(())
    };
    store.put(&place(Kind::Block, 4), true, fill).unwrap();
    work(&store);
    assert_eq!((store.counts().records, store.counts().dropped), (3, 1));
}

#[test]
fn arrivals_bound_what_is_read_ahead() {
    let folder = Temporary::new("ahead");
    let one = SIZES.of(Kind::Block) as u64;
    let store = open_with(&folder.0, 1 << 20, one);
    (1..=4).for_each(|key| {
        put(&store, Kind::Block, key);
        work(&store);
    });
    let mut port = Port { store: store.clone(), replica: 0 };
    (1..=4).for_each(|key| port.order(key, 0, place(Kind::Block, key)).unwrap());
    port.cancel(3);
    assert_eq!(work(&store), 2);
    assert_eq!(store.arrival(0).map(|arrival| arrival.ticket), Some(1));
    assert_eq!(work(&store), 1);
    assert_eq!(store.arrival(0).map(|arrival| arrival.ticket), Some(2));
    assert_eq!(store.arrival(0).map(|arrival| arrival.ticket), Some(4), "3 was withdrawn");
}

/// Files of a full disk.
struct Full;

impl Files for Full {
    fn claim(&mut self) -> Claim {
        Claim::Held
    }
    fn release(&mut self) {}
    fn list(&mut self) -> std::io::Result<Vec<(Name, u64)>> {
        Ok(Vec::new())
    }
    fn read(&mut self, _: Name, _: usize, _: &mut Vec<u8>) -> std::io::Result<()> {
        Err(ErrorKind::NotFound.into())
    }
    fn write(&mut self, _: Name, _: &[u8]) -> std::io::Result<()> {
        Err(ErrorKind::StorageFull.into())
    }
    fn remove(&mut self, _: Name) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_disk_is_told_once() {
    let store =
        Store::open(Box::new(Full), SCOPE, SIZES, bounds(1 << 20, 1 << 20), 1).unwrap().without_thread();
    (1..=2).for_each(|key| put(&store, Kind::Block, key));
    assert_eq!(work(&store), 2);
    assert!(store.failure().unwrap().contains("could not be written to"));
    assert_eq!((store.failure(), store.counts().dropped, store.counts().records), (None, 2, 0));
    let refused = store.put(&place(Kind::Block, 5), false, |_| Err(Error::internal("no bytes")));
    assert!(refused.is_err());
    assert_eq!(work(&store), 0);
}

#[test]
fn the_thread_writes_everything_before_it_ends() {
    let folder = Temporary::new("thread");
    let files = Box::new(Folder::new(&folder.0, SCOPE));
    let one = SIZES.of(Kind::Block) as u64;
    let store = Arc::new(Store::open(files, SCOPE, SIZES, bounds(1 << 20, one), 2).unwrap());
    let worker = store.clone();
    let thread = std::thread::spawn(move || worker.run(&|_| ()));
    for key in 1..=50 {
        let fill = |out: &mut Vec<u8>| {
            out.resize(out.len() + 100, 0);
            Ok(())
        };
        store.put(&place(Kind::Block, key), true, fill).unwrap();
    }
    store.leave();
    store.leave();
    thread.join().unwrap();
    assert_eq!((store.counts().records, store.counts().dropped), (50, 0));
}
