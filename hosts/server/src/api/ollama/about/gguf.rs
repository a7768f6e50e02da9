//! Reads the beginning of a GGUF file: its keys, and the sizes of its tensors. However damaged the file is, little
//! is read.
use super::About;
use super::types::quantization;
use serde_json::{Map, Value};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Error, ErrorKind, Read, Result};
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 4] = b"GGUF";
/// Maximum bytes of a key, a name or a text. Templates have some ten thousand.
const LONG: u64 = 1 << 20;
/// Maximum number of keys, tensors, or texts in a list.
const MANY: u64 = 1 << 22;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// Skipping beyond the end of the file succeeds, but the next read fails.
struct Reader(BufReader<File>);

fn malformed() -> Error {
    Error::from(ErrorKind::InvalidData)
}

impl Reader {
    /// Opens a file. Returns a reader at the first key, and the numbers of tensors and keys.
    fn open(path: &Path) -> Result<(Self, u64, u64)> {
        let mut reader = Self(BufReader::with_capacity(1 << 16, File::open(path)?));
        let magic: [u8; 4] = reader.bytes()?;
        let version = reader.u32()?;
        if magic != *MAGIC || !(2..=3).contains(&version) {
            return Err(malformed());
        }
        let (tensors, keys) = (reader.count()?, reader.count()?);
        Ok((reader, tensors, keys))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn u32(&mut self) -> Result<u32> {
        self.bytes().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.bytes().map(u64::from_le_bytes)
    }

    fn count(&mut self) -> Result<u64> {
        self.u64().and_then(|count| if count <= MANY { Ok(count) } else { Err(malformed()) })
    }

    fn text(&mut self) -> Result<String> {
        let length = self.u64()?;
        let mut bytes = Vec::new();
        (&mut self.0).take(length.min(LONG)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != length {
            return Err(malformed());
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn skip(&mut self, bytes: u64) -> Result<()> {
        self.0.seek_relative(i64::try_from(bytes).map_err(|_| malformed())?)
    }

    /// Reads a value of this type. Null for a list, whose elements are skipped.
    fn value(&mut self, kind: u32) -> Result<Value> {
        Ok(match kind {
            0 => self.bytes::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.bytes()?).into(),
            2 => u16::from_le_bytes(self.bytes()?).into(),
            3 => i16::from_le_bytes(self.bytes()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.bytes()?).into(),
            6 => f32::from_le_bytes(self.bytes()?).into(),
            7 => (self.bytes::<1>()?[0] != 0).into(),
            STRING => self.text()?.into(),
            ARRAY => {
                self.skip_list()?;
                Value::Null
            }
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.bytes()?).into(),
            12 => f64::from_le_bytes(self.bytes()?).into(),
            _ => return Err(malformed()),
        })
    }

    fn skip_list(&mut self) -> Result<()> {
        let (kind, count) = (self.u32()?, self.count()?);
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            STRING => {
                for _ in 0..count {
                    let length = self.u64()?;
                    self.skip(length)?;
                }
                return Ok(());
            }
            _ => return Err(malformed()),
        };
        self.skip(count * size)
    }

    fn keys(&mut self, count: u64) -> Result<Map<String, Value>> {
        let mut keys = Map::new();
        for _ in 0..count {
            let (name, kind) = (self.text()?, self.u32()?);
            let value = self.value(kind)?;
            keys.insert(name, value);
        }
        Ok(keys)
    }

    /// Elements of tensors, by their types.
    fn tensors(&mut self, count: u64, sizes: &mut HashMap<u32, u64>) -> Result<()> {
        for _ in 0..count {
            self.text()?;
            let dimensions = self.u32()?;
            if dimensions > 8 {
                return Err(malformed());
            }
            let mut elements: u64 = 1;
            for _ in 0..dimensions {
                elements = elements.saturating_mul(self.u64()?);
            }
            let size = sizes.entry(self.u32()?).or_default();
            *size = size.saturating_add(elements);
            self.u64()?; // its place
        }
        Ok(())
    }
}

pub fn read(path: &Path) -> Result<About> {
    let (mut reader, tensors, keys) = Reader::open(path)?;
    let mut keys = reader.keys(keys)?;
    let mut sizes = HashMap::new();
    reader.tensors(tensors, &mut sizes)?;
    for part in parts(path, &keys) {
        let (mut reader, tensors, keys) = Reader::open(&part)?;
        reader.keys(keys)?;
        reader.tensors(tensors, &mut sizes)?;
    }
    let template = keys.remove("tokenizer.chat_template");
    let template = template.as_ref().and_then(Value::as_str).unwrap_or_default().to_owned();
    let text = |name: &str| keys.get(name).and_then(Value::as_str).unwrap_or_default();
    let number = |name: &str| keys.get(name).and_then(Value::as_u64);
    let architecture = bn_hub::printable(text("general.architecture")).into_owned();
    let of = |name: &str| format!("{architecture}.{name}");
    let all = sizes.values().fold(0_u64, |sum, size| sum.saturating_add(*size));
    let pools = number(&of("pooling_type")).is_some_and(|kind| kind != 0);
    let marks = ["tokenizer.ggml.fim_pre_token_id", "tokenizer.ggml.prefix_token_id"];
    Ok(About {
        parameters: number("general.parameter_count").unwrap_or(all),
        quantization: quantization(number("general.file_type"), &sizes).to_owned(),
        context_length: number(&of("context_length")).unwrap_or_default(),
        embeds: pools || architecture.contains("bert") || architecture.ends_with("-embedding"),
        chats: !template.is_empty(),
        template,
        infills: marks.iter().any(|name| keys.contains_key(*name)),
        architecture,
        ..About::default()
    })
    .map(|about| About { values: keys, ..about })
}

/// The other files of a model in parts.
fn parts(path: &Path, keys: &Map<String, Value>) -> Vec<PathBuf> {
    let count = keys.get("split.count").and_then(Value::as_u64).unwrap_or(1).min(999);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let front = name.split_once("-00001-of-").filter(|_| count > 1);
    let Some((front, behind)) = front else { return Vec::new() };
    (2..=count).map(|part| path.with_file_name(format!("{front}-{part:05}-of-{behind}"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(out: &mut Vec<u8>, text: &str) {
        out.extend((text.len() as u64).to_le_bytes());
        out.extend(text.as_bytes());
    }

    fn key(out: &mut Vec<u8>, name: &str, kind: u32, value: &[u8]) {
        put(out, name);
        out.extend(kind.to_le_bytes());
        out.extend(value);
    }

    /// A file with a template, a list of texts and two tensors.
    fn sample() -> Vec<u8> {
        let mut out = b"GGUF\x03\0\0\0".to_vec();
        out.extend(2_u64.to_le_bytes());
        out.extend(5_u64.to_le_bytes());
        let text = |text: &str| {
            let mut out = Vec::new();
            put(&mut out, text);
            out
        };
        key(&mut out, "general.architecture", STRING, &text("llama"));
        key(&mut out, "general.file_type", 4, &15_u32.to_le_bytes());
        key(&mut out, "llama.context_length", 4, &2048_u32.to_le_bytes());
        let mut list = [&STRING.to_le_bytes()[..], &2_u64.to_le_bytes()].concat();
        put(&mut list, "a");
        put(&mut list, "bc");
        key(&mut out, "tokenizer.ggml.tokens", ARRAY, &list);
        key(&mut out, "tokenizer.chat_template", STRING, &text("<think>"));
        for (name, kind, sides) in [("a", 0_u32, &[10_u64][..]), ("b", 12, &[256, 3])] {
            put(&mut out, name);
            out.extend((sides.len() as u32).to_le_bytes());
            sides.iter().for_each(|side| out.extend(side.to_le_bytes()));
            out.extend(kind.to_le_bytes());
            out.extend(0_u64.to_le_bytes());
        }
        out
    }

    fn read_bytes(name: &str, bytes: &[u8]) -> Result<About> {
        let path = std::env::temp_dir().join(format!("bn-server-{}-{name}.gguf", std::process::id()));
        std::fs::write(&path, bytes)?;
        let about = read(&path);
        std::fs::remove_file(path)?;
        about
    }

    #[test]
    fn a_file_says_what_it_is() {
        let about = read_bytes("known", &sample()).unwrap();
        assert_eq!((about.architecture.as_str(), about.quantization.as_str()), ("llama", "Q4_K_M"));
        assert_eq!((about.parameters, about.context_length), (778, 2048));
        assert_eq!(about.capabilities(), ["completion", "tools", "thinking"]);
        let names: Vec<_> = about.values.keys().map(String::as_str).collect();
        let all =
            ["general.architecture", "general.file_type", "llama.context_length", "tokenizer.ggml.tokens"];
        assert_eq!(names, all);
    }

    #[test]
    fn a_file_that_is_cut_anywhere_says_nothing() {
        let whole = sample();
        for length in 0..whole.len() {
            assert!(read_bytes("cut", &whole[..length]).is_err(), "{length}");
        }
        let mut long = whole.clone();
        long[24..32].copy_from_slice(&u64::MAX.to_le_bytes()); // the first key's length
        assert!(read_bytes("long", &long).is_err());
    }
}
