//! Compares the cache with a naive one: a map from blocks to texts, searched from end to end.

use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;

/// Contents of an indexed block: salt, and a text from its first position on that ends in this block.
type Content = (u64, Vec<u32>);

/// A sequence that holds blocks.
struct Holder {
    salt: u64,
    text: Vec<u32>,
    table: BlockTable,
}

struct Naive {
    cache: PrefixCache,
    known: HashMap<u32, Content>,
    /// Blocks without holders, in order of eviction.
    idle: VecDeque<u32>,
    holders: Vec<Holder>,
    blocks: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Begin {
        salt: u64,
        text: Vec<u32>,
        limit: usize,
    },
    /// Adds tokens to one of the holders.
    GoOn {
        holder: usize,
        more: Vec<u32>,
    },
    End {
        holder: usize,
    },
    Clear,
}

impl Naive {
    fn new(blocks: u32) -> Self {
        let (known, idle, holders) = (HashMap::new(), VecDeque::new(), Vec::new());
        Self { cache: cache(blocks), known, idle, holders, blocks: blocks as usize }
    }

    fn holders_of(&self, block: u32) -> usize {
        self.holders.iter().filter(|holder| holder.table.contains(&block)).count()
    }

    fn full(&self, salt: u64, text: &[u32]) -> Option<u32> {
        let has = |(_, (s, known)): &(&u32, &Content)| *s == salt && known == text;
        self.known.iter().find(has).map(|(&block, _)| block)
    }

    /// The largest number of tokens, at most `most`, that any block shares with `text` after its first `before`
    /// tokens.
    fn best_part(&self, salt: u64, text: &[u32], before: usize, most: usize) -> usize {
        let here = |(s, known): &&Content| {
            *s == salt && (known.len() - 1) / SIZE * SIZE == before && known[..before] == text[..before]
        };
        let wanted = &text[before..before + most];
        let common =
            |(_, known): &Content| known[before..].iter().zip(wanted).take_while(|(a, b)| a == b).count();
        self.known.values().filter(here).map(common).max().unwrap_or(0)
    }

    /// Checks that both find the same. Returns the full blocks and the partial match.
    fn find(&self, salt: u64, text: &[u32], limit: usize) -> (BlockTable, Option<(u32, u32)>) {
        let limit = limit.min(text.len());
        let (found, table) = find(&self.cache, salt, text, limit);
        let mut expected = BlockTable::new();
        while (expected.len() + 1) * SIZE <= limit
            && let Some(block) = self.full(salt, &text[..(expected.len() + 1) * SIZE])
        {
            expected.push(block);
        }
        assert_eq!((found.blocks, &table), (expected.len(), &expected));
        assert_eq!(found.idle, table.iter().filter(|block| self.idle.contains(block)).count());
        let before = SIZE * table.len();
        let best = self.best_part(salt, text, before, SIZE.min(limit - before));
        assert_eq!(found.part.map_or(0, |(_, n)| n as usize), best);
        if let Some((block, n)) = found.part {
            let (s, known) = &self.known[&block];
            assert!(*s == salt && known[..before + n as usize] == text[..before + n as usize]);
        }
        (table, found.part)
    }

    fn take(&mut self) -> Option<u32> {
        let held = (0..self.blocks as u32).filter(|&block| self.holders_of(block) > 0).count();
        let block = self.cache.take();
        assert_eq!(block.is_none(), held == self.blocks);
        let block = block?;
        if held + self.idle.len() == self.blocks {
            assert_eq!(self.idle.pop_front(), Some(block), "not the oldest");
            let (salt, text) = self.known.remove(&block).expect("idle and unknown");
            let child =
                |(s, known): &Content| *s == salt && known.len() > text.len() && known.starts_with(&text);
            assert!(!text.len().is_multiple_of(SIZE) || !self.known.values().any(child), "not a leaf");
        }
        assert!(!self.known.contains_key(&block) && self.holders_of(block) == 0);
        Some(block)
    }

    fn begin(&mut self, salt: u64, text: &[u32], limit: usize) {
        let (table, part) = self.find(salt, text, limit);
        self.cache.retain(&table);
        self.idle.retain(|block| !table.contains(block));
        let mut positions = SIZE * table.len();
        self.holders.push(Holder { salt, text: text[..positions].to_vec(), table });
        let at = self.holders.len() - 1;
        if let Some((_, n)) = part
            && let Some(block) = self.take()
        {
            positions += n as usize;
            self.holders[at].table.push(block);
            self.holders[at].text = text[..positions].to_vec();
        }
        self.go_on(at, &text[positions..]);
    }

    fn go_on(&mut self, at: usize, more: &[u32]) {
        for &token in more {
            if self.holders[at].text.len() == SIZE * self.holders[at].table.len() {
                let Some(block) = self.take() else { return };
                self.holders[at].table.push(block);
            }
            let holder = &mut self.holders[at];
            holder.text.push(token);
            if holder.text.len().is_multiple_of(SIZE) {
                self.store_full(at);
            }
        }
    }

    fn store_full(&mut self, at: usize) {
        let Holder { salt, text, table } = &self.holders[at];
        let (index, block) = (text.len() / SIZE - 1, *table.last().unwrap());
        let place = place(*salt, text, table, index);
        let key = keys(*salt, text)[index];
        let twin = self.full(*salt, text).filter(|&twin| twin != block);
        let merged = self.cache.counts().merged;
        let now = self.cache.store(block, place, &ids(&text[index * SIZE..]), key).expect("no key collides");
        assert_eq!(now, twin.unwrap_or(block));
        assert_eq!(self.cache.counts().merged - merged, u64::from(twin.is_some()));
        let content = (*salt, text.clone());
        self.known.remove(&block);
        self.known.insert(now, content);
        self.idle.retain(|&idle| idle != now);
        *self.holders[at].table.last_mut().unwrap() = now;
    }

    fn end(&mut self, at: usize) {
        let mut holder = self.holders.swap_remove(at);
        let (salt, text) = (holder.salt, &holder.text);
        let before = text.len() / SIZE * SIZE;
        if before < text.len() {
            let (block, tail) = (holder.table[before / SIZE], &ids(&text[before..]));
            let others = self.known.iter().filter(|(other, _)| **other != block);
            let known =
                others.map(|(_, content)| content).any(|(s, known)| *s == salt && known.starts_with(text));
            self.cache.store_part(block, place(salt, text, &holder.table, before / SIZE), tail, false);
            if !known {
                self.known.insert(block, (salt, text.clone()));
            }
        }
        self.cache.release_all(&mut holder.table.clone());
        while let Some(block) = holder.table.pop() {
            if self.known.contains_key(&block) && self.holders_of(block) == 0 {
                self.idle.push_back(block);
            }
        }
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Begin { salt, text, limit } => self.begin(*salt, text, *limit),
            _ if self.holders.is_empty() => {}
            Step::GoOn { holder, more } => self.go_on(holder % self.holders.len(), more),
            Step::End { holder } => self.end(holder % self.holders.len()),
            Step::Clear => {
                self.cache.clear();
                self.idle.drain(..).for_each(|block| _ = self.known.remove(&block));
            }
        }
        self.cache.check().unwrap();
        let pool = self.cache.pool();
        assert_eq!(pool.idle(), self.idle.len());
        assert!(
            (0..self.blocks as u32).all(|block| pool.references(block) as usize == self.holders_of(block))
        );
    }
}

fn tokens() -> impl Strategy<Value = Vec<u32>> {
    prop::collection::vec(0..2u32, 0..20)
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..2u64, tokens(), 0..24usize).prop_map(|(salt, text, limit)| Step::Begin { salt, text, limit }),
        4 => (any::<usize>(), tokens()).prop_map(|(holder, more)| Step::GoOn { holder, more }),
        8 => any::<usize>().prop_map(|holder| Step::End { holder }),
        1 => Just(Step::Clear),
    ];
    prop::collection::vec(step, 0..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn finds_stores_merges_and_evicts_like_a_map(blocks in 1..28u32, steps in steps()) {
        let mut naive = Naive::new(blocks);
        steps.iter().for_each(|step| naive.step(step));
        while !naive.holders.is_empty() {
            naive.step(&Step::End { holder: 0 });
        }
        assert_eq!(naive.cache.pool().held(), 0);
    }
}
