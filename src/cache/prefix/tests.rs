use super::*;
use std::collections::HashMap;

mod random;

const SIZE: usize = 4;

/// Every third is a vector.
fn id(token: u32) -> ContentId {
    if token % 3 == 1 { ContentId::of_vector(token.into(), 0) } else { token.into() }
}

fn ids(text: &[u32]) -> Vec<ContentId> {
    text.iter().copied().map(id).collect()
}

fn keys(salt: u64, text: &[u32]) -> Vec<u64> {
    let mut key = salt;
    let next = |tokens| {
        key = chain(key, &ids(tokens));
        key
    };
    text.chunks_exact(SIZE).map(next).collect()
}

/// Finds a text in the cache, up to `limit` positions. Returns its blocks without holding them.
fn find(cache: &PrefixCache, salt: u64, text: &[u32], limit: usize) -> (Found, BlockTable) {
    let mut table = BlockTable::new();
    let keys = keys(salt, text);
    let found = cache.find(salt, &keys, &|at| id(text[at as usize]), limit as u32, &mut table);
    (found, table)
}

/// The tree position of block `index` of a text.
fn place(salt: u64, text: &[u32], table: &[u32], index: usize) -> TreePosition {
    match index.checked_sub(1) {
        None => TreePosition { salt, parent: NONE, parent_key: salt },
        Some(before) => TreePosition { salt, parent: table[before], parent_key: keys(salt, text)[before] },
    }
}

/// Stores a whole text, in new blocks for unknown contents, and holds its blocks.
fn store(cache: &mut PrefixCache, salt: u64, text: &[u32]) -> BlockTable {
    let (mut table, keys) = (BlockTable::new(), keys(salt, text));
    for (index, tokens) in text.chunks(SIZE).enumerate() {
        let block = cache.take().unwrap();
        let place = place(salt, text, &table, index);
        let block = match keys.get(index) {
            Some(&key) => cache.store(block, place, &ids(tokens), key).unwrap(),
            None => {
                cache.store_part(block, place, &ids(tokens), false);
                block
            }
        };
        table.push(block);
    }
    cache.check().unwrap();
    table
}

fn store_and_release(cache: &mut PrefixCache, salt: u64, text: &[u32]) -> BlockTable {
    let table = store(cache, salt, text);
    cache.release_all(&mut table.clone());
    cache.check().unwrap();
    table
}

fn cache(blocks: u32) -> PrefixCache {
    PrefixCache::new(blocks, SIZE as u32).unwrap()
}

#[test]
fn finds_whole_blocks_and_then_part_of_one() {
    let mut cache = cache(8);
    let text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10];
    let table = store_and_release(&mut cache, 0, &text);
    for (limit, blocks, part) in [
        (10, 2, Some((2, 2))),
        (9, 2, Some((2, 1))),
        (8, 2, None),
        (7, 1, Some((1, 3))),
        (4, 1, None),
        (0, 0, None),
    ] {
        let part = part.map(|(index, n): (usize, u32)| (table[index], n));
        let expected = Found { blocks, idle: blocks, part, state: None };
        assert_eq!(find(&cache, 0, &text, limit), (expected, table[..blocks].to_vec()), "limit {limit}");
    }
    // Blocks that are held already take no room.
    cache.retain(&table[..1]);
    assert_eq!(find(&cache, 0, &text, 8).0, Found { blocks: 2, idle: 1, ..Found::default() });
    // Texts that differ in the first block, at its end, and within the second.
    for (text, blocks, part) in [
        ([1, 2, 9, 9, 9, 9, 9, 9], 0, Some((table[0], 2))),
        ([1, 2, 3, 4, 9, 9, 9, 9], 1, None),
        ([1, 2, 3, 4, 5, 9, 9, 9], 1, Some((table[1], 1))),
        ([9, 2, 3, 4, 5, 6, 7, 8], 0, None),
    ] {
        assert_eq!(find(&cache, 0, &text, 8).0, Found { blocks, idle: 0, part, state: None }, "{text:?}");
    }
}

#[test]
fn texts_of_another_salt_are_unknown() {
    let mut cache = cache(8);
    let text = [1, 2, 3, 4, 5, 6];
    store_and_release(&mut cache, 7, &text);
    assert_eq!(find(&cache, 7, &text, 6).0.blocks, 1);
    assert_eq!(find(&cache, 8, &text, 6).0, Found::default());
    store_and_release(&mut cache, 8, &text);
    assert_eq!((cache.counts().merged, cache.pool().idle()), (0, 4));
}

#[test]
fn the_sibling_with_most_in_common_is_found() {
    let mut cache = cache(16);
    let base = [1, 2, 3, 4];
    let with = |tail: &[u32]| [&base, tail].concat();
    let first = store(&mut cache, 0, &with(&[5, 6, 7, 8]));
    let mut tables = vec![first.clone()];
    for tail in [&[5, 6, 9][..], &[5, 9], &[9]] {
        tables.push(store(&mut cache, 0, &with(tail)));
    }
    assert!(tables.iter().all(|table| table[0] == first[0]), "the first block was known each time");
    let part = |cache: &PrefixCache, tail: &[u32]| {
        let (found, _) = find(cache, 0, &with(tail), 4 + tail.len());
        (found.blocks, found.part)
    };
    assert_eq!(part(&cache, &[5, 6, 7]), (1, Some((first[1], 3))));
    assert_eq!(part(&cache, &[5, 6, 9, 9]), (1, Some((tables[1][1], 3))));
    assert_eq!(part(&cache, &[9, 9]), (1, Some((tables[3][1], 1))));
    assert_eq!(part(&cache, &[8]), (1, None));
    // Removes one from the middle of the list, one from its end and one from its beginning.
    for (gone, left) in [(1, [5, 9]), (0, [5, 9]), (3, [5, 9])] {
        cache.release_all(&mut tables[gone]);
        while cache.pool().idle() > 0 {
            cache.take().unwrap();
        }
        cache.check().unwrap();
        assert_eq!(part(&cache, &left), (1, Some((tables[2][1], 2))));
    }
}

#[test]
fn among_very_many_siblings_the_newest_are_looked_at() {
    let mut cache = cache(3 * SIBLINGS as u32);
    let tables: Vec<_> = (0..2 * SIBLINGS as u32).map(|i| store(&mut cache, 0, &[i, 7])).collect();
    let part = |i: usize| find(&cache, 0, &[i as u32, 7], 2).0.part;
    assert_eq!(part(2 * SIBLINGS - 1), Some((tables[2 * SIBLINGS - 1][0], 2)));
    assert_eq!(part(SIBLINGS), Some((tables[SIBLINGS][0], 2)));
    assert_eq!(part(SIBLINGS - 1), None);
}

#[test]
fn a_part_grows_and_becomes_a_whole_block() {
    let mut cache = cache(4);
    let text = [1, 2, 3, 4];
    let block = cache.take().unwrap();
    let place = place(0, &text, &[], 0);
    for n in 1..4 {
        cache.store_part(block, place, &ids(&text[..n]), false);
        assert_eq!(find(&cache, 0, &text, 4).0.part, Some((block, n as u32)));
        assert_eq!(cache.indexed(block), n as u32);
    }
    // Another block with the same contents is not stored.
    let other = cache.take().unwrap();
    cache.store_part(other, place, &ids(&text[..2]), false);
    assert_eq!(cache.indexed(other), 0);
    let key = keys(0, &text)[0];
    assert_eq!(cache.store(block, place, &ids(&text), key), Some(block));
    assert_eq!(cache.store(block, place, &ids(&text), key), Some(block), "once more");
    assert_eq!(find(&cache, 0, &text, 4), (Found { blocks: 1, ..Found::default() }, vec![block]));
    cache.release(other);
    assert_eq!((cache.pool().idle(), cache.pool().available()), (0, 3), "what nobody can find is free");
    cache.check().unwrap();
}

#[test]
fn what_was_computed_twice_is_kept_once() {
    let mut cache = cache(4);
    let text = [1, 2, 3, 4];
    let first = store(&mut cache, 0, &text);
    let second = cache.take().unwrap();
    let place = place(0, &text, &[], 0);
    // The block was in the index with other contents.
    cache.store_part(second, place, &ids(&[1, 2, 9]), false);
    assert_eq!(cache.store(second, place, &ids(&text), keys(0, &text)[0]), Some(first[0]));
    assert_eq!((cache.pool().references(first[0]), cache.pool().references(second)), (2, 0));
    assert_eq!((cache.counts().merged, cache.pool().available(), cache.indexed(second)), (1, 3, 0));
    cache.check().unwrap();
}

#[test]
fn the_ends_of_the_oldest_texts_go_first() {
    let mut cache = cache(6);
    let (a, b) = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [1, 2, 3, 4, 5, 5, 5, 5]);
    let first = store(&mut cache, 0, &a);
    let second = store(&mut cache, 0, &b);
    assert_eq!(first[0], second[0]);
    cache.release_all(&mut first.clone());
    cache.release_all(&mut second.clone());
    // Blocks that were never used are taken first.
    let taken: Vec<u32> = (0..6).map(|_| cache.take().unwrap()).collect();
    assert_eq!(taken[2..], [first[2], first[1], second[1], first[0]]);
    assert_eq!((cache.take(), cache.counts().evictions), (None, 4));
    assert_eq!(find(&cache, 0, &a, 9).0, Found::default());
    cache.check().unwrap();
}

#[test]
fn a_use_makes_a_text_the_newest() {
    let mut cache = cache(3);
    let first = store_and_release(&mut cache, 0, &[1, 2, 3, 4, 5]);
    let second = store_and_release(&mut cache, 0, &[6, 7]);
    cache.retain(&first);
    cache.release_all(&mut first.clone());
    assert_eq!([cache.take(), cache.take(), cache.take()], [second[0], first[1], first[0]].map(Some));
}

/// Routers compute keys from tokens.
#[test]
fn keys_of_tokens_are_hashes_of_32_bit_numbers() {
    let text = [1, 2, 3, u32::MAX];
    let bytes: Vec<u8> = text.iter().flat_map(|token| token.to_le_bytes()).collect();
    assert_eq!(chain(9, &text), xxh64(&bytes, 9));
    assert_eq!(chain(9, &text.map(ContentId::from)), xxh64(&bytes, 9));
    assert_ne!(chain(9, &[ContentId::of_vector(1, 0); 4]), chain(9, &[ContentId::of_vector(1, 1); 4]));
    let longest = [ContentId::of_vector(1, 0); MAX_BLOCK_SIZE];
    assert_ne!(chain(9, &longest), chain(9, &longest[1..]));
}

/// 64-bit keys can collide, and an attacker who chooses texts may find a collision.
#[test]
fn a_key_that_two_contents_have_finds_neither_wrongly() {
    let mut cache = cache(8);
    let (a, b) = ([1, 2, 3, 4], [5, 6, 7, 8]);
    let first = store(&mut cache, 0, &a);
    let key = keys(0, &a)[0];
    let block = cache.take().unwrap();
    let root = place(0, &b, &[], 0);
    assert_eq!(cache.store(block, root, &ids(&b), key), None, "other tokens");
    let below = TreePosition { salt: 0, parent: first[0], parent_key: key };
    assert_eq!(cache.store(block, below, &ids(&a), key), None, "another parent");
    let salted = TreePosition { salt: 1, parent: NONE, parent_key: 0 };
    assert_eq!(cache.store(block, salted, &ids(&a), key), None, "another salt");
    assert_eq!((cache.indexed(block), cache.counts().merged), (0, 0));
    let found = |salt, keys: &[u64], text: &[u32]| {
        let mut table = BlockTable::new();
        let found = cache.find(salt, keys, &|at| id(text[at as usize]), 4, &mut table);
        (found.blocks, found.part, table)
    };
    assert_eq!(found(0, &[key], &b), (0, None, vec![]));
    assert_eq!(found(1, &[key], &a), (0, None, vec![]));
    // Found by its tokens although the key is wrong, because the contents match.
    assert_eq!(found(0, &[key + 1], &a), (0, Some((first[0], 4)), vec![]));
    cache.check().unwrap();
}

#[test]
fn clear_forgets_what_nobody_holds() {
    let mut cache = cache(8);
    let held = store(&mut cache, 0, &[1, 2, 3, 4, 5, 6]);
    store_and_release(&mut cache, 0, &[1, 2, 3, 4, 7]);
    store_and_release(&mut cache, 0, &[8; 12]);
    assert_eq!(cache.pool().idle(), 4);
    cache.clear();
    cache.check().unwrap();
    assert_eq!((cache.pool().idle(), cache.pool().held(), cache.pool().available()), (0, 2, 6));
    assert_eq!(find(&cache, 0, &[8; 12], 12).0, Found::default());
    assert_eq!(find(&cache, 0, &[1, 2, 3, 4, 5, 6], 6).0.part, Some((held[1], 2)));
}

#[test]
fn changes_are_told_and_told_anew_where_they_were_too_many() {
    let mut cache = cache(4);
    let drain = |cache: &mut PrefixCache| {
        let mut events = Vec::new();
        cache.drain_events(&mut |event| events.push(event));
        events
    };
    store_and_release(&mut cache, 9, &[6; 4]);
    assert_eq!(drain(&mut cache), [], "nobody has asked");
    cache.log_events(4).unwrap();
    let text = [1, 2, 3, 4, 5, 6, 7, 8, 9];
    let all = keys(3, &text);
    let stored = |index: usize| CacheEvent::Stored {
        key: all[index],
        parent_key: if index == 0 { 3 } else { all[index - 1] },
    };
    let table = store(&mut cache, 3, &text);
    assert_eq!(drain(&mut cache), [stored(0), stored(1)], "a part is nothing that a key stands for");
    assert_eq!(drain(&mut cache), []);
    cache.take().unwrap();
    assert_eq!(drain(&mut cache), [CacheEvent::Removed { key: keys(9, &[6; 4])[0] }]);
    cache.release_all(&mut table[1..].to_vec());
    cache.clear();
    assert_eq!(drain(&mut cache), [CacheEvent::Cleared, stored(0)]);
    for token in 10..15 {
        store_and_release(&mut cache, 3, &[token; 4]);
    }
    let told = drain(&mut cache);
    assert_eq!((told[0], told.len()), (CacheEvent::Cleared, 1 + 3));
    assert!(told.contains(&stored(0)));
    assert!(told.contains(&CacheEvent::Stored { key: keys(3, &[14; 4])[0], parent_key: 3 }));
}

#[test]
fn sizes_have_bounds() {
    let refused = |blocks, size| PrefixCache::new(blocks, size).err().map(|error| error.status);
    use crate::base::Status;
    assert_eq!([refused(4, 0), refused(4, 129)], [Some(Status::InvalidArgument); 2]);
    assert_eq!([refused(4, 1), refused(4, 128)], [None; 2]);
}
