//! Tests of models in several files.

use super::writer::{Meta, Writer};
use super::*;
use std::path::PathBuf;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

struct Split {
    folder: PathBuf,
    parts: Vec<Writer>,
}

impl Split {
    /// Three parts with one, two and no tensors. Only the first has a name.
    fn new(name: &str) -> Self {
        let part = |no: u32| {
            Writer::new()
                .meta("split.no", Meta::Raw(2, (no as u16).to_le_bytes().to_vec()))
                .meta("split.count", Meta::Raw(2, 3u16.to_le_bytes().to_vec()))
                .meta("split.tensors.count", Meta::I32(3))
        };
        let folder = std::env::temp_dir().join(format!("bn-split-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let parts = vec![
            part(0).meta("general.name", "whole").tensor("a", &[2], 0, &floats(&[1.0, 2.0])),
            part(1).meta("general.name", "other").tensor("b", &[1], 0, &floats(&[3.0])).tensor(
                "c",
                &[2, 2],
                0,
                &floats(&[4.0, 5.0, 6.0, 7.0]),
            ),
            part(2),
        ];
        Self { folder, parts }
    }

    fn path(&self, no: usize) -> String {
        self.folder.join(format!("m-{:05}-of-00003.gguf", no + 1)).to_str().unwrap().to_owned()
    }

    fn write(&self) -> &Self {
        for (no, part) in self.parts.iter().enumerate() {
            std::fs::write(self.path(no), part.build()).expect("write");
        }
        self
    }

    #[track_caller]
    fn refused(&self, no: usize, status: Status, words: &[&str]) {
        let error = Gguf::open(&self.path(no)).err().expect("refused");
        assert_eq!(error.status, status, "{error}");
        words.iter().for_each(|word| assert!(error.message.contains(word), "'{word}' is not in: {error}"));
    }
}

impl Drop for Split {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

#[test]
fn any_part_opens_the_whole() {
    let split = Split::new("whole");
    split.write();
    for no in 0..3 {
        let g = Gguf::open(&split.path(no)).unwrap();
        assert_eq!(g.get::<&str>("general.name").unwrap(), "whole");
        assert_eq!(g.tensors().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b", "c"]);
        assert_eq!(g.vector_f32("a", 2).unwrap()[..], [1.0, 2.0]);
        assert_eq!(g.vector_f32("b", 1).unwrap()[..], [3.0]);
        let c = g.matrix("c", 2, 2).unwrap();
        assert_eq!(c.data[..], floats(&[4.0, 5.0, 6.0, 7.0]));
        assert!(g.maps(&c.data));
        assert_eq!(g.file_bytes(), split.parts.iter().map(|part| part.build().len()).sum::<usize>());
        assert_eq!(g.tensor_bytes(), 8 + 4 + 16);
        assert_eq!(g.what(), split.path(0));
        let error = g.matrix("c", 3, 2).err().unwrap();
        assert!(error.message.contains("'c'"), "{error}");
    }
}

#[test]
fn a_missing_or_broken_part_is_named() {
    let split = Split::new("missing");
    split.write();
    std::fs::remove_file(split.path(1)).unwrap();
    for no in [0, 2] {
        split.refused(no, Status::Io, &["m-00002-of-00003.gguf", "part 2 of 3", "os error 2"]);
    }
    std::fs::write(split.path(1), b"").unwrap();
    split.refused(0, Status::BadModel, &["m-00002-of-00003.gguf", "empty"]);
    std::fs::write(split.path(1), b"GGUF").unwrap();
    split.refused(0, Status::BadModel, &["m-00002-of-00003.gguf", "version"]);
    // The file with that name is a different part, or not a part at all.
    std::fs::write(split.path(1), split.parts[2].build()).unwrap();
    split.refused(0, Status::BadModel, &["m-00002-of-00003.gguf", "split.no is 2"]);
    std::fs::write(split.path(1), Writer::new().build()).unwrap();
    split.refused(0, Status::BadModel, &["m-00002-of-00003.gguf", "split.no", "missing"]);
}

#[test]
fn counts_and_names_have_to_agree() {
    let mut split = Split::new("counts");
    split.parts[0].pairs[2].1 = Meta::I32(4);
    split.write().refused(0, Status::BadModel, &["split.tensors.count is 4", "hold 3"]);
    split.parts[0].pairs[2].1 = Meta::I32(3);
    split.parts[2] = split.parts[2].clone().tensor("a", &[1], 0, &[0; 4]);
    split.write().refused(0, Status::BadModel, &["m-00003-of-00003.gguf", "'a'", "another part"]);
    split.parts[0].pairs[0].1 = Meta::U32(3);
    split.write().refused(0, Status::BadModel, &["split.no is 3", "split.count of 3"]);
    split.parts[0].pairs[0].1 = Meta::U32(1);
    split.write().refused(0, Status::BadModel, &["part 2 of 3", "'-00002-of-00003.gguf'"]);
    let other = split.folder.join("other.gguf");
    std::fs::write(&other, split.parts[1].build()).unwrap();
    let error = Gguf::open(other.to_str().unwrap()).err().expect("refused");
    assert!(error.message.contains("other.gguf") && error.message.contains("part 2 of 3"), "{error}");
    // In memory, there is no folder to look for other parts.
    let error = Gguf::from_bytes(split.parts[1].bytes(), "memory").err().expect("refused");
    assert_eq!(error.status, Status::Unsupported);
    assert!(error.message.contains("memory") && error.message.contains("split.count is 3"), "{error}");
}
