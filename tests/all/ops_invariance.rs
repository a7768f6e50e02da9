//! Invariant 3 at the level of operations: a row's bits depend on its own sequence alone, whatever runs with
//! it.

use crate::ops_support::{Chunk, Random, batch, plain, rope, tables};
use bn_engine::kernels::attention::KvType;
use bn_engine::kernels::{DType, Isa, Matrix, Pool, available, isa};
use bn_engine::ops::pass::{Attend, Ids, Op, Pass, Product, Program, Ropes, Step};
use bn_engine::ops::{
    Activation, AttentionShape, Axes, CpuOps, HostMemory, KvLayout, Memory, MemoryLayout, Norm, OpSet,
    Outputs, Paging, Projections, RaggedBatch, Rope, RopeStyle,
};
use std::ops::Range;
use std::sync::Arc;

const BLOCKS: usize = 100;

/// Two layers of a decoder.
struct Toy {
    embedding: Matrix,
    shape: AttentionShape,
    rope: Rope,
    norm: Norm,
    qkv: Projections,
    output: Projections,
    gate_up: Projections,
    down: Projections,
    activation: Activation,
    /// Window of the second layer, whose rope differs too.
    window: Option<usize>,
    local: Rope,
    qk_norms: Option<[Norm; 2]>,
    sinks: Option<Vec<f32>>,
    post_norm: Option<Norm>,
    scale: f32,
    lengths: Vec<usize>,
    kv_type: KvType,
    /// Positions of the first sequence with given vectors, which see each other and have rotations in two dimensions.
    picture: Range<usize>,
}

impl Toy {
    fn new(seed: u32, dtype: DType, shape: AttentionShape, style: RopeStyle, activation: Activation) -> Self {
        let mut random = Random(seed);
        let (hidden, heads) = (256, shape.heads * shape.head_dim);
        Self {
            embedding: random.matrix(DType::F16, 50, hidden),
            norm: random.norm(hidden),
            qkv: plain(&[random.matrix(dtype, heads + 2 * shape.kv_heads * shape.head_dim, hidden)]),
            output: plain(&[random.matrix(dtype, hidden, heads)]),
            gate_up: plain(&[random.matrix(dtype, 1024, hidden)]),
            down: plain(&[random.matrix(dtype, hidden, 512)]),
            rope: rope(shape.head_dim / 2, style),
            lengths: [61, 1, 17, 32].to_vec(),
            kv_type: KvType::ALL[seed as usize % KvType::ALL.len()],
            local: rope(shape.head_dim / 2, style),
            shape,
            activation,
            window: None,
            qk_norms: None,
            sinks: None,
            post_norm: None,
            scale: 1.0,
            picture: 0..0,
        }
    }

    /// As `new`, with all features that only some families have.
    fn full(seed: u32, dtype: DType, shape: AttentionShape, window: usize) -> Self {
        let mut random = Random(seed + 100);
        let mut toy = Self::new(seed, dtype, shape, RopeStyle::Neox, Activation::GeGlu);
        toy.qk_norms = Some([0, 1].map(|_| random.norm(toy.shape.head_dim)));
        toy.sinks = Some(random.floats(toy.shape.heads));
        toy.post_norm = Some(random.norm(256));
        toy.window = Some(window);
        toy.local.factor = 1.3;
        toy.scale = 16.0;
        let [q, k, v] = [toy.shape.heads, toy.shape.kv_heads, toy.shape.kv_heads]
            .map(|heads| random.matrix(dtype, heads * toy.shape.head_dim, 256));
        toy.qkv = plain(&[q, k, v]);
        toy.qkv.bias = Some(random.floats(toy.shape.qkv()).into());
        toy.qkv.norms = (0..3).map(|_| random.norm(256)).collect();
        toy.down.bias = Some(random.floats(256).into());
        toy.picture = 14..41;
        let pairs = toy.shape.head_dim / 2;
        let sections = [pairs - 2 * (pairs / 3), pairs / 3, pairs / 3];
        toy.rope.axes = Some(Axes::new(sections, false));
        toy.local.axes = Some(Axes::new(sections, true));
        toy
    }

    fn all() -> [Self; 8] {
        let shape = |heads, kv_heads, head_dim| AttentionShape::new(heads, kv_heads, head_dim);
        [
            Self::new(1, DType::I2S, shape(8, 2, 32), RopeStyle::Neox, Activation::Relu2),
            Self::new(2, DType::TQ2_0, shape(4, 4, 64), RopeStyle::Neox, Activation::Relu2),
            Self::new(3, DType::Q8_0, shape(3, 1, 128), RopeStyle::Interleaved, Activation::SwiGlu),
            Self::new(4, DType::BF16, shape(6, 2, 12), RopeStyle::Neox, Activation::SwiGlu),
            Self::new(7, DType::Ternary, shape(6, 2, 12), RopeStyle::Neox, Activation::Relu2),
            Self::new(8, DType::Int8, shape(4, 2, 16), RopeStyle::Neox, Activation::SwiGlu),
            Self::full(5, DType::I2S, shape(4, 2, 64), 19),
            Self::full(6, DType::F32, shape(4, 1, 32), 30),
        ]
    }

    fn token(seq: usize, position: usize) -> u32 {
        ((seq * 31 + position * 7) % 50) as u32
    }

    /// The chunks, and what the first sequence has in its picture.
    fn batch(&self, chunks: &[Chunk], tables: &[Vec<u32>]) -> RaggedBatch {
        let mut batch = (*batch(chunks, tables, Self::token)).clone();
        if self.picture.is_empty() {
            return batch;
        }
        let Range { start, end } = self.picture;
        for (chunk, seq) in chunks.iter().zip(&batch.seqs) {
            for position in chunk.start..chunk.start + chunk.rows {
                let row = seq.row + (position - chunk.start) as u32;
                let own = [0, 1, 2].map(|axis| match (chunk.seq, position) {
                    (0, at) if at >= end => at - (end - start) + 6,
                    (0, at) if at >= start => start + [0, (at - start) / 6, (at - start) % 6][axis],
                    (_, at) => at,
                } as u32);
                batch.rotations.push(own);
                if chunk.seq == 0 && self.picture.contains(&position) {
                    batch.vector_rows.push(row);
                    batch.vectors.extend(Random(position as u32).floats(256));
                }
            }
            if chunk.seq == 0 && (chunk.start..chunk.start + chunk.rows).contains(&start) {
                let row = |at: usize| seq.row + (at - chunk.start) as u32;
                batch.mutual.push(row(start)..row(end));
            }
        }
        batch
    }

    /// Number of rows of a chunk that begins at `start`: at most `rows` more, but not a part of the picture.
    fn whole(&self, seq: usize, start: usize, rows: usize) -> usize {
        let end = start + rows;
        if seq == 0 && start <= self.picture.start && self.picture.contains(&(end - 1)) {
            return self.picture.end - start;
        }
        rows
    }

    fn memory(&self, block_size: usize) -> HostMemory {
        let AttentionShape { kv_heads, head_dim, .. } = self.shape;
        let kind = self.kv_type;
        let (layers, blocks, others) = (2, BLOCKS, None);
        let kv = KvLayout { kind, layers, kv_heads, head_dim, others, joint: false, blocks, block_size };
        HostMemory::new(MemoryLayout::of(kv)).unwrap()
    }

    /// The list of both layers, and its rotations.
    fn program(&self) -> (Program, [Ropes; 2]) {
        let mut pass = Pass::default();
        let (table, scale) = (self.embedding.clone(), self.scale);
        let x = pass.make(|to| Op::Embed { ids: Ids::Tokens, table, scale, to });
        pass.push(Op::Replace { x, scale: 0.5 });
        let product = |weights: &Projections| Product::fixed(weights.clone());
        for layer in 0..2 {
            let how = Arc::new(Attend {
                window: self.window.filter(|_| layer == 1),
                norms: self.qk_norms.clone(),
                sinks: self.sinks.as_deref().map(Into::into),
                place: layer,
                ..Attend::plain(self.shape.clone(), layer)
            });
            let qkv = pass.linear(x, Some(self.norm.clone()), product(&self.qkv));
            let heads = pass.make(|to| Op::Attention { qkv, how, to });
            let update = pass.linear(heads, None, product(&self.output));
            pass.add(x, update, self.post_norm.clone());
            let wide = pass.linear(x, Some(self.norm.clone()), product(&self.gate_up));
            let gated = pass.make(|to| Op::Gated { x: wide, activation: self.activation, to });
            let update = pass.linear(gated, None, product(&self.down));
            pass.add(x, update, self.post_norm.clone());
        }
        pass.push(Op::Hidden { x, norm: None });
        let ropes = [&self.rope, &self.local].map(|rope| Ropes { rope: rope.clone(), long: None });
        (Program::new(&pass, &[], true).unwrap(), ropes)
    }

    /// Bits of the hidden state after both layers, a row for each of the batch's.
    fn step(&self, ops: &dyn OpSet, batch: &RaggedBatch, memory: &mut dyn Memory) -> Vec<Vec<u32>> {
        let (program, ropes) = self.program();
        let hidden_rows = (0..batch.tokens.len() as u32).collect();
        let batch = &RaggedBatch { hidden_rows, ..batch.clone() };
        let paging = Some(Paging::new(batch, &memory.layout().kv, &self.shape).unwrap());
        let step = Step { paging, ropes: &ropes, ..Step::of_rows(batch) };
        let mut out = Outputs::default();
        ops.run(&program, &step, Some(memory), &[], &mut out, &mut || Ok(())).unwrap();
        out.hidden.chunks_exact(256).map(|row| row.iter().map(|x| x.to_bits()).collect()).collect()
    }

    /// Every sequence by itself, its prompt at once: the reference for all other ways.
    fn reference(&self, ops: &dyn OpSet) -> Vec<Vec<Vec<u32>>> {
        let one = |(seq, &length): (usize, &usize)| {
            let mut tables = vec![Vec::new(); self.lengths.len()];
            tables[seq] = (0..length.div_ceil(16) as u32).collect();
            let batch = self.batch(&[Chunk { seq, start: 0, rows: length }], &tables);
            self.step(ops, &batch, &mut self.memory(16))
        };
        self.lengths.iter().enumerate().map(one).collect()
    }

    /// All sequences together in random chunks of at most `largest` rows, in random order.
    fn ragged(&self, ops: &dyn OpSet, seed: u32, block_size: usize, largest: usize) -> Vec<Vec<Vec<u32>>> {
        let mut random = Random(seed);
        let tables = tables(&mut random, &self.lengths, block_size, BLOCKS);
        let memory = &mut self.memory(block_size);
        let mut out = vec![Vec::new(); self.lengths.len()];
        while out.iter().zip(&self.lengths).any(|(rows, length)| rows.len() < *length) {
            let mut chunks = Vec::new();
            for (seq, rows) in out.iter().enumerate() {
                let left = self.lengths[seq] - rows.len();
                if left > 0 && random.below(4) > 0 {
                    let more = 1 + random.below(left.min(largest));
                    chunks.push(Chunk { seq, start: rows.len(), rows: self.whole(seq, rows.len(), more) });
                }
            }
            random.shuffle(&mut chunks);
            if chunks.is_empty() {
                continue;
            }
            let mut rows = self.step(ops, &self.batch(&chunks, &tables), memory).into_iter();
            for chunk in chunks {
                out[chunk.seq].extend(rows.by_ref().take(chunk.rows));
            }
        }
        out
    }
}

fn ops(threads: usize, isa: Isa) -> CpuOps {
    CpuOps::with_isa(Pool::new(threads).unwrap(), isa).unwrap()
}

#[test]
fn batch_chunks_blocks_and_threads_do_not_show() {
    for (index, toy) in Toy::all().iter().enumerate() {
        let want = toy.reference(&ops(1, isa()));
        for threads in [1, 2, 3] {
            let ops = ops(threads, isa());
            for (n, block_size) in [16, 32, 64].into_iter().enumerate() {
                for largest in [1, 5, 40] {
                    let got = toy.ragged(&ops, (n * 100 + largest) as u32, block_size, largest);
                    let what = format!(
                        "toy {index}, {threads} threads, blocks of {block_size}, chunks to {largest}"
                    );
                    assert!(got == want, "{what}");
                }
            }
        }
    }
}

/// Contexts of several pieces, in one task or split among several, in every type, with and without windows.
#[test]
fn long_contexts() {
    for (kv_type, mut toy) in KvType::ALL.into_iter().flat_map(|kind| {
        let [first, .., last] = Toy::all();
        [first, last].map(|toy| (kind, toy))
    }) {
        (toy.kv_type, toy.lengths) = (kv_type, vec![530, 3, 261]);
        toy.window = toy.window.map(|_| 300);
        if !toy.picture.is_empty() {
            toy.picture = 230..520;
        }
        let want = toy.reference(&ops(1, isa()));
        for (threads, block_size, largest) in [(1, 32, 100), (2, 16, 90), (8, 64, 200), (3, 16, 530)] {
            let got = toy.ragged(&ops(threads, isa()), largest as u32, block_size, largest);
            assert!(
                got == want,
                "{kv_type:?}, {threads} threads, blocks of {block_size}, chunks to {largest}"
            );
        }
        // Decodes the end of the longest.
        let (mut tables, memory) = (vec![Vec::new(); 3], &mut toy.memory(16));
        tables[0] = (0..34).rev().collect();
        let prompt = toy.batch(&[Chunk { seq: 0, start: 0, rows: 520 }], &tables);
        let ops = ops(4, isa());
        let mut rows = toy.step(&ops, &prompt, memory);
        for start in 520..530 {
            let one = toy.batch(&[Chunk { seq: 0, start, rows: 1 }], &tables);
            rows.extend(toy.step(&ops, &one, memory));
        }
        assert!(rows == want[0], "{kv_type:?}: decoding");
    }
}

#[test]
fn the_instruction_set_does_not_show() {
    for (index, toy) in Toy::all().iter().enumerate() {
        let want = toy.reference(&ops(1, isa()));
        for &isa in available() {
            assert!(toy.reference(&ops(2, isa)) == want, "toy {index}: prompts at once, {isa:?}");
            assert!(toy.ragged(&ops(2, isa), 9, 32, 9) == want, "toy {index}: ragged, {isa:?}");
        }
    }
}

/// Checks the comparison itself: another token changes the bits, and so does each input of a picture.
#[test]
fn different_sequences_have_different_bits() {
    let toy = &Toy::all()[0];
    let out = toy.reference(&ops(1, isa()));
    assert_ne!(out[0][16], out[2][16]);
    assert_ne!(out[0][0], out[1][0]);
    let (toy, tables) = (&Toy::all()[7], [vec![0, 1, 2, 3]]);
    let run = |change: &dyn Fn(&mut RaggedBatch)| {
        let mut batch = toy.batch(&[Chunk { seq: 0, start: 0, rows: 61 }], &tables);
        change(&mut batch);
        toy.step(&ops(1, isa()), &batch, &mut toy.memory(16))
    };
    let want = run(&|_| ());
    let changes: [&dyn Fn(&mut RaggedBatch); 4] = [
        &|batch| batch.vectors[0] += 1.0,
        &|batch| batch.rotations[40][1] += 1,
        &|batch| batch.rotations[20][2] += 1,
        &|batch| batch.mutual[0].start += 1,
    ];
    for (n, change) in changes.into_iter().enumerate() {
        let got = run(change);
        assert!(got[..14] == want[..14], "change {n}: rows before the picture");
        assert!((14..41).all(|row| got[row] != want[row]), "change {n}: rows of the picture");
    }
}
