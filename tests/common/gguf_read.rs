//! Reads a GGUF file into `File`, so that a test can change one that other tests compare.

use super::gguf::{File, Tensor, Value};

struct Bytes<'a>(&'a [u8], usize);

impl Bytes<'_> {
    fn take(&mut self, n: usize) -> Vec<u8> {
        self.1 += n;
        self.0[self.1 - n..self.1].to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn string(&mut self) -> String {
        let n = self.u64() as usize;
        String::from_utf8(self.take(n)).expect("a name")
    }

    /// The bytes of a value of this type.
    fn raw(&mut self, kind: u32) -> Vec<u8> {
        let from = self.1;
        match kind {
            8 => drop(self.string()),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                (0..n).for_each(|_| drop(self.raw(kind)));
            }
            _ => self.1 += [1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8][kind as usize],
        }
        self.0[from..self.1].to_vec()
    }

    fn value(&mut self) -> Value {
        match self.u32() {
            4 => Value::U32(self.u32()),
            6 => Value::F32(f32::from_bits(self.u32())),
            7 => Value::Bool(self.take(1) != [0]),
            8 => Value::Str(self.string()),
            kind => Value::Raw(kind, self.raw(kind)),
        }
    }
}

/// Reads a file that we made ourselves, so an error panics.
pub fn read(bytes: &[u8]) -> File {
    let mut from = Bytes(bytes, 8);
    let (tensors, keys) = (from.u64(), from.u64());
    let mut file = File::default();
    for _ in 0..keys {
        let key = from.string();
        file.keys.push((key, from.value()));
    }
    let mut offsets = Vec::new();
    for _ in 0..tensors {
        let (name, dims) = (from.string(), from.u32());
        let dims = (0..dims).map(|_| from.u64()).collect();
        let type_id = from.u32();
        offsets.push(from.u64() as usize);
        file.tensors.push(Tensor { name, dims, type_id, data: Vec::new() });
    }
    let data = &bytes[from.1.next_multiple_of(32)..];
    for (tensor, &offset) in file.tensors.iter_mut().zip(&offsets) {
        let end = offsets.iter().copied().filter(|&next| next > offset).min();
        tensor.data = data[offset..end.unwrap_or(data.len())].to_vec();
    }
    file
}
