//! Pictures of a world: a real tower, whose steps take time and fail, and what the echo model reads of its vectors. It
//! reads a letter for each, so a wrong vector, or the K and V of another picture, changes the output.

use super::host::Host;
use super::machine;
use crate::base::{Error, Result, Status};
use crate::engine::api::{Picture, Prompt, RequestParams};
use crate::kernels::{Pool, isa};
use crate::model::{PictureTokens, Sight, Source, load_tower};
use crate::ops::pass::{Program, Step};
use crate::ops::{AttentionShape, CpuOps, Memory, OpSet, Outputs, RaggedBatch};
use crate::picture::Pixels;
use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use xxhash_rust::xxh64::xxh64;

/// The token that stands for a picture in a prompt that has pictures. In others it is a token like any, and requests
/// that draw at random generate it.
pub const PLACE: u32 = 60;
/// In the host's own prompts, the number of a picture follows here.
pub const FIRST: u32 = 1000;
/// Width and height, by which pictures are known.
const SIZES: [(u32, u32); 4] = [(16, 16), (24, 16), (16, 40), (48, 30)];
pub const COUNT: u32 = SIZES.len() as u32;

/// Tokens that the echo model reads in place of each picture.
static READ: OnceLock<Vec<Vec<u32>>> = OnceLock::new();

pub fn sight() -> Arc<Sight> {
    static SIGHT: OnceLock<Arc<Sight>> = OnceLock::new();
    let load = || {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/towers/qwen35");
        let pool = Pool::new(1).unwrap();
        let tower = load_tower(&Source::File(path.into()), 0, &pool, &|_, _| (), &mut |_, _| false);
        let tokens = PictureTokens { placeholder: PLACE, soft: PLACE, row: PLACE };
        Arc::new(Sight { tower: tower.unwrap().expect("a tower"), tokens, by_grid: true, mutual: false })
    };
    SIGHT.get_or_init(load).clone()
}

fn rgb(picture: usize) -> Vec<u8> {
    let (width, height) = SIZES[picture];
    (0..width * height * 3).map(|i| (i.wrapping_mul(2_654_435_761) >> (8 + picture)) as u8).collect()
}

fn read_of(picture: usize) -> &'static [u32] {
    let read = |picture: usize| {
        let sight = sight();
        let (processor, (width, height)) = (sight.tower.processor(), SIZES[picture]);
        let plan = processor.plan(width, height).unwrap();
        let (mut rows, mut vectors) = (Vec::new(), Vec::new());
        processor.prepare(&Pixels::new(width, height, rgb(picture)).unwrap(), &plan, &mut rows).unwrap();
        let ops = CpuOps::with_isa(Pool::new(1).unwrap(), isa()).unwrap();
        sight.tower.forward(&ops, &[(&rows, &plan.grids)], &mut || false, &mut vectors).unwrap();
        vectors.chunks_exact(sight.tower.width()).map(letter).collect()
    };
    &READ.get_or_init(|| (0..SIZES.len()).map(read).collect())[picture]
}

fn letter(vector: &[f32]) -> u32 {
    let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
    97 + (xxh64(&bytes, 0) % 3) as u32
}

/// The batch as the echo model reads it.
pub fn read(batch: &RaggedBatch) -> Cow<'_, RaggedBatch> {
    let mut read = Cow::Borrowed(batch);
    for (n, row) in batch.vector_rows.iter().enumerate() {
        let width = batch.vectors.len() / batch.vector_rows.len();
        read.to_mut().tokens[*row as usize] = letter(&batch.vectors[n * width..][..width]);
    }
    if !batch.rotations.is_empty() {
        let read = read.to_mut();
        (read.vectors, read.vector_rows, read.rotations) = (Vec::new(), Vec::new(), Vec::new());
    }
    read
}

fn number(picture: &Picture) -> usize {
    let Picture::Pixels { width, height, .. } = picture else { unreachable!("pictures are pixels") };
    SIZES.iter().position(|size| *size == (*width, *height)).expect("a picture of the world")
}

/// Puts the prompt of the host's own tokens into a request.
pub fn give(params: &mut RequestParams<'static>, own: &[u32]) {
    let picture = |token: &u32| {
        let n = token.checked_sub(FIRST)? as usize;
        let (width, height) = SIZES[n];
        Some(Picture::Pixels { width, height, rgb: rgb(n).into() })
    };
    params.pictures = own.iter().filter_map(picture).collect();
    let ids = own.iter().map(|token| if *token < FIRST { *token } else { PLACE });
    params.prompt = Prompt::Tokens(ids.collect::<Vec<_>>().into());
}

/// The prompt with what `each` makes of a picture's number.
fn spread(params: &RequestParams, each: impl Fn(usize, &mut Vec<u32>)) -> Vec<u32> {
    let Prompt::Tokens(ids) = &params.prompt else { unreachable!("the simulation's prompts are ids") };
    let (mut pictures, mut all) = (params.pictures.iter().peekable(), Vec::new());
    for id in ids.iter() {
        match pictures.next_if(|_| *id == PLACE) {
            Some(picture) => each(number(picture), &mut all),
            None => all.push(*id),
        }
    }
    all
}

/// The host's own tokens of a prompt; the engine's; those that the echo model reads.
pub fn own(params: &RequestParams) -> Vec<u32> {
    spread(params, |picture, all| all.push(FIRST + picture as u32))
}

pub fn ids(params: &RequestParams) -> Vec<u32> {
    spread(params, |picture, all| all.resize(all.len() + read_of(picture).len(), PLACE))
}

pub fn seen(params: &RequestParams) -> Vec<u32> {
    spread(params, |picture, all| all.extend(read_of(picture)))
}

/// The block and the position of each row, and what it is rotated by.
fn rotations<'a>(
    batch: &'a RaggedBatch,
    memory: &dyn Memory,
) -> impl Iterator<Item = ((u32, u32), [u32; 3])> + use<'a> {
    let size = memory.layout().kv.block_size as u32;
    batch.seqs.iter().flat_map(move |seq| {
        (seq.row..seq.row + seq.rows).map(move |row| {
            let at = batch.positions[row as usize];
            let block = batch.block_tables[(seq.table + at / size) as usize];
            ((block, at), batch.rotations.get(row as usize).map_or([at; 3], |own| *own))
        })
    })
}

impl Host {
    /// Number of pictures that requests or a tower hold.
    pub fn living_pictures(&self) -> usize {
        self.shared.eyes.as_ref().map_or(0, |eyes| eyes.known.living())
    }

    /// Notes what drafted rows are rotated by.
    pub fn note_rotations(&mut self, batch: &RaggedBatch, memory: &dyn Memory) {
        self.rotations.extend(rotations(batch, memory));
    }

    /// Checks that the model's pass rotates drafted rows as the block that drafted did.
    pub fn check_rotations(&mut self, batch: &RaggedBatch, memory: &dyn Memory) {
        for (place, rotation) in rotations(batch, memory) {
            let Some(drafted) = self.rotations.get(&place) else { continue };
            self.tally.more("drafts rotated apart from positions", u64::from(rotation[0] != place.1));
            if *drafted != rotation {
                let wrong = format!("a draft at {place:?} is rotated by {drafted:?} instead of {rotation:?}");
                self.broken.get_or_insert(wrong);
            }
        }
    }
}

/// Returns whether the prompt has more or fewer places than pictures.
pub fn misplaced(params: &RequestParams) -> bool {
    let Prompt::Tokens(ids) = &params.prompt else { unreachable!("the simulation's prompts are ids") };
    let places = ids.iter().filter(|id| **id == PLACE).count();
    !params.pictures.is_empty() && places != params.pictures.len()
}

/// The operations of the CPU; only the tower runs programs.
pub struct Slow(pub CpuOps);

impl OpSet for Slow {
    fn run(
        &self,
        program: &Program,
        step: &Step,
        memory: Option<&mut dyn Memory>,
        given: &[&[f32]],
        out: &mut Outputs,
        check: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        if machine::host().borrow_mut().looks() {
            return Err(Error::new(Status::Internal, "a fault of the simulation"));
        }
        self.0.run(program, step, memory, given, out, check)
    }

    fn attention_bytes(&self, shape: &AttentionShape, rows: usize, context: usize) -> usize {
        self.0.attention_bytes(shape, rows, context)
    }

    fn encode_bytes(&self, shape: &AttentionShape, rows: usize) -> usize {
        self.0.encode_bytes(shape, rows)
    }

    fn whole_bytes(&self, rows: usize, cols: usize) -> usize {
        self.0.whole_bytes(rows, cols)
    }

    fn task_rows(&self) -> usize {
        self.0.task_rows()
    }

    fn threads(&self) -> usize {
        self.0.threads()
    }
}
