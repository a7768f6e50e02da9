//! Sessions and the prefix cache.
use crate::support::{ECHO, demo, generate, open, open_with, wants};
use bn::{ErrorKind, KvEventKind, Request};

#[test]
fn sessions_are_saved_and_restored() {
    let engine = demo();
    generate(&engine, &Request { session: Some("s".into()), ..Request::prompt("One day") });
    let mut data = engine.session_save("s").unwrap();
    engine.session_free("s").unwrap();
    wants(engine.session_free("s"), ErrorKind::NotFound, "");
    engine.session_restore("s", &data).unwrap();
    assert_eq!(engine.stats().unwrap().sessions, 1);
    let middle = data.len() / 2;
    data[middle] ^= 1;
    wants(engine.session_restore("s", &data), ErrorKind::InvalidArgument, "");
    wants(engine.session_restore("s", &[]), ErrorKind::InvalidArgument, "");
    engine.cache_clear().unwrap();
}

#[test]
fn changes_of_the_cache_are_read() {
    let engine = open_with("", |options| {
        (options.model_path, options.kv_events_capacity, options.kv_block_size) = (None, 1024, 16);
    });
    generate(&engine, &Request::prompt("One day ".repeat(20)));
    let events = engine.kv_events().unwrap();
    assert!(events.len() >= 2);
    assert_eq!((events[0].kind, events[0].parent_hash, events[0].hash_type), (KvEventKind::Stored, 0, 1));
    assert_eq!(events[1].parent_hash, events[0].hash);
    engine.cache_clear().unwrap();
    let events = engine.kv_events().unwrap();
    assert_eq!((events.len(), events[0].kind), (1, KvEventKind::Cleared));
    assert!(engine.kv_events().unwrap().is_empty());
    wants(open(ECHO).kv_events(), ErrorKind::WrongMode, "kv_events_capacity");
}
