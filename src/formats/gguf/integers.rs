//! Tensors of whole numbers, which no weights are.

use super::Gguf;
use crate::base::{Error, Result, reserve};

/// ggml's numbers of their types.
const I32: u32 = 26;
const I64: u32 = 27;

impl Gguf {
    /// The vector `name` of whole numbers, from I64 or I32. Errors as for [`Self::matrix`].
    pub fn integers(&self, name: &str) -> Result<Vec<i64>> {
        let info = self.tensor(name).ok_or_else(|| self.error(format_args!("tensor '{name}' is missing")))?;
        let width = match info.type_id {
            I64 => 8,
            I32 => 4,
            _ => {
                let why = format!("it has type {} where whole numbers, I64 or I32, belong", info.type_name());
                return Err(self.of_tensor(name, Error::unsupported(why)));
            }
        };
        let [len, rest @ ..] = info.dims;
        if rest != [1; 3] {
            let why = format_args!("tensor '{name}' has dimensions {:?} where a vector belongs", info.dims);
            return Err(self.error(why));
        }
        // Opening checked the first byte alone: weights never have such a type.
        let end = len.checked_mul(width).filter(|bytes| *bytes <= info.extent);
        let end = end.and_then(|bytes| info.offset.checked_add(bytes));
        let data = end.and_then(|end| self.files[info.part].data.slice(info.offset..end));
        let data = data.ok_or_else(|| {
            let why = format!("its {len} numbers do not fit before the next tensor; is the file truncated?");
            self.of_tensor(name, Error::bad_model(why))
        })?;
        let mut out = Vec::new();
        reserve(&mut out, len, "a tensor of whole numbers")?;
        match width {
            4 => out.extend(data.as_chunks().0.iter().map(|n| i64::from(i32::from_le_bytes(*n)))),
            _ => out.extend(data.as_chunks().0.iter().map(|n| i64::from_le_bytes(*n))),
        }
        Ok(out)
    }
}
