//! Stub.
use crate::base::Result;
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pixels { pub width: u32, pub height: u32, pub rgb: Vec<u8> }
pub struct Limits { pub bytes: usize, pub side: u32, pub pixels: u64 }
pub fn size(_: &[u8], _: &Limits) -> Result<(u32, u32)> { todo!() }
pub fn decode(_: &[u8], _: &Limits) -> Result<Pixels> { todo!() }
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grid { pub rows: u32, pub cols: u32 }
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece { Text(String), Vectors { rows: u32, cols: u32 } }
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan { pub pieces: Vec<Piece>, pub grids: Vec<Grid> }
pub struct Processor;
impl Processor {
    pub fn plan(&self, _: u32, _: u32) -> Result<Plan> { todo!() }
    pub fn prepare(&self, _: &Pixels, _: &Plan, _: &mut Vec<f32>) -> Result<()> { todo!() }
}
