//! Copies of golden folders, for tests that damage them.

use crate::common::{Golden, Running, load_source, root};
use bn_engine::base::{Result, Status};
use bn_engine::model::{LoadOptions, Source};
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A copy of a golden folder that is removed after the test.
pub struct Copy(pub PathBuf);

impl Copy {
    pub fn of(name: &str) -> Self {
        Self::of_folder("models", name)
    }

    /// Copies a folder of `tests/golden/<kind>`.
    pub fn of_folder(kind: &str, name: &str) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let to = std::env::temp_dir().join(format!("bn-model-{}-{n}-{name}", std::process::id()));
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(root().join("tests/golden").join(kind).join(name)).unwrap() {
            let entry = entry.unwrap();
            if entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
        Self(to)
    }

    /// As `of`, with the folders of its modules.
    pub fn whole(name: &str) -> Self {
        let copy = Self::of(name);
        for entry in std::fs::read_dir(root().join("tests/golden/models").join(name)).unwrap() {
            let folder = entry.unwrap();
            if folder.path().is_dir() {
                let to = copy.0.join(folder.file_name());
                std::fs::create_dir_all(&to).unwrap();
                for file in std::fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap()) {
                    std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
                }
            }
        }
        copy
    }

    pub fn path(&self) -> String {
        self.0.to_str().unwrap().to_owned()
    }

    pub fn read(&self, file: &str) -> Vec<u8> {
        std::fs::read(self.0.join(file)).unwrap()
    }

    pub fn put(&self, file: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.join(file), bytes).unwrap();
        self
    }

    pub fn config(&self, change: impl FnOnce(&mut Value)) -> &Self {
        let mut config: Value = serde_json::from_slice(&self.read("config.json")).unwrap();
        change(&mut config);
        self.put("config.json", config.to_string())
    }

    /// Changes the header of `model.safetensors`; its data stay.
    pub fn header(&self, change: impl FnOnce(&mut Value)) -> &Self {
        let (mut header, data) = parts(&self.read("model.safetensors"));
        change(&mut header);
        self.put("model.safetensors", file(&header, &data))
    }

    /// Replaces the data of the tensor that has this many bytes with `bytes`.
    pub fn tensor(&self, name: &str, bytes: &[u8]) -> &Self {
        let (header, mut data) = parts(&self.read("model.safetensors"));
        let offset = |i: usize| header[name]["data_offsets"][i].as_u64().unwrap() as usize;
        data[offset(0)..offset(1)].copy_from_slice(bytes);
        self.put("model.safetensors", file(&header, &data))
    }

    /// Writes the two bytes of an element, in F16 or BF16, to column 5 of the embedding of `token`.
    pub fn embedding_element(&self, token: u32, element: [u8; 2]) -> &Self {
        const NAME: &str = "model.embed_tokens.weight";
        let (header, data) = parts(&self.read("model.safetensors"));
        let of = |key: &str, i: usize| header[NAME][key][i].as_u64().unwrap() as usize;
        let mut table = data[of("data_offsets", 0)..of("data_offsets", 1)].to_vec();
        let at = 2 * (token as usize * of("shape", 1) + 5);
        table[at..at + 2].copy_from_slice(&element);
        self.tensor(NAME, &table)
    }

    pub fn load(&self) -> Result<Running> {
        open(&self.path(), &LoadOptions::default())
    }

    pub fn refused(&self, status: Status, parts: &[&str]) {
        let error = self.load().err().expect("the folder was taken");
        assert_eq!(error.status, status, "{error}");
        for part in parts.iter().copied().chain([self.path().as_str()]) {
            assert!(error.message.contains(part), "no '{part}' in: {error}");
        }
    }
}

/// Models in F16 and BF16 whose first token has a residual like those of real models, which reach 98,538 (Gemma 3
/// 270M): 65,504, the largest F16, and 98,304. The reference logits do not apply to them.
pub fn large_residuals() -> [(Golden, Copy); 2] {
    [("llama-f16", 0x7BFFu16), ("llama-bf16", 0x47C0)].map(|(name, element)| {
        let golden = Golden::models(|_| true).into_iter().find(|golden| golden.case == name).expect(name);
        let copy = Copy::of(name);
        copy.embedding_element(golden.sequences[0][0], element.to_le_bytes());
        (Golden { model: copy.path(), ..golden }, copy)
    })
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn parts(bytes: &[u8]) -> (Value, Vec<u8>) {
    let n = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    (serde_json::from_slice(&bytes[8..8 + n]).unwrap(), bytes[8 + n..].to_vec())
}

pub fn file(header: &Value, data: &[u8]) -> Vec<u8> {
    let header = header.to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend(data);
    bytes
}

pub fn open(path: &str, options: &LoadOptions) -> Result<Running> {
    load_source(&Source::parse(Some(path))?, options, 2)
}
