//! Chooses the files of a repository that a model needs: one GGUF file, all parts of a split one, or the files of a
//! safetensors folder. No others are downloaded.
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;
use std::fs;
use std::io::Read;
use std::path::Path;

use serde::Deserialize;

use crate::error::{Error, Result};
use crate::list::{File, List};
use crate::printable;
use crate::progress::bytes;
use crate::sight::{Part, part_of};

pub const INDEX: &str = "model.safetensors.index.json";
const GGUF: &str = ".gguf";
/// Maximum size of an index.
const LONGEST_INDEX: u64 = 64 << 20;

/// The files of a model.
#[derive(Debug)]
pub struct Choice<'a> {
    pub files: Vec<&'a File>,
    /// The file that is opened, or "" for the folder.
    pub entry: &'a str,
}

/// Chooses a model's files from a list.
pub struct Chooser<'a> {
    /// For messages: the repository, perhaps "in the cache".
    pub place: String,
    pub list: &'a List,
}

impl<'a> Chooser<'a> {
    /// Chooses the files of a model, or of the one that `which` names. The error lists the choices.
    pub fn choose(&self, which: Option<&str>) -> Result<Choice<'a>> {
        let model = which.map_or_else(|| self.usual(), |which| self.asked_for(which));
        match (model, which) {
            (Some(model), _) => Ok(Choice { files: self.parts(model)?, entry: &model.name }),
            (None, Some(which)) => {
                Err(self.refusal(&format!(" has no GGUF file or type '{}'. It has:", printable(which))))
            }
            (None, None) => self.folder(),
        }
    }

    /// The part that sees for the GGUF file `model`: beside it, or at the top.
    pub fn part(&self, model: &str) -> Option<&'a File> {
        let (folder, name) = model.rsplit_once('/').map_or(("", model), |(folder, name)| (folder, name));
        let in_folder = |folder: &str| -> Vec<(&'a str, &'a File)> {
            let split = |file: &'a File| {
                file.name.rsplit_once('/').map_or(("", &*file.name), |(of, name)| (of, name))
            };
            let files = self.list.files().iter().map(|file| (split(file), file));
            files.filter(|((of, _), _)| *of == folder).map(|((_, name), file)| (name, file)).collect()
        };
        [folder, ""].into_iter().find_map(|folder| {
            let files = in_folder(folder);
            let names: Vec<_> = files.iter().map(|(name, _)| *name).collect();
            let Part::One(part) = part_of(name, &names, true) else { return None };
            files.iter().find(|(name, _)| *name == part).map(|(_, file)| *file)
        })
    }

    /// The safetensors files that an index names.
    pub fn shards(&self, index: &Path) -> Result<Vec<&'a File>> {
        let no_list = || {
            Error::failed(format!("{}: no list of safetensors files", printable(&index.to_string_lossy())))
        };
        let names = read_index(index).ok_or_else(no_list)?.weight_map;
        let names: HashSet<&str> = names.values().map(String::as_str).collect();
        let mut files = Vec::with_capacity(names.len());
        for name in names {
            files.push(self.list.find(name).ok_or_else(|| self.lacks(name))?);
        }
        files.sort_unstable_by_key(|file| &file.name);
        Ok(files)
    }

    fn lacks(&self, name: &str) -> Error {
        Error::failed(format!("{} lacks {}", self.place, printable(name)))
    }

    /// All parts of a model.
    fn parts(&self, model: &'a File) -> Result<Vec<&'a File>> {
        let split = Split::of(&model.name);
        let mut files = vec![model];
        for part in 2..=split.parts {
            let name = split.name(part);
            files.push(self.list.find(&name).ok_or_else(|| self.lacks(&name))?);
        }
        Ok(files)
    }

    fn models(&self) -> impl Iterator<Item = &'a File> {
        self.list.files().iter().filter(|file| is_model(&file.name))
    }

    /// The file of a type; the one with the shortest name if there are several.
    fn of_type(&self, kind: &str) -> Option<&'a File> {
        self.models().filter(|file| has_type(&file.name, kind)).min_by_key(|file| file.name.len())
    }

    /// The file or type that was asked for.
    fn asked_for(&self, which: &str) -> Option<&'a File> {
        let file = self.list.find(which).or_else(|| self.list.find(&format!("{which}{GGUF}")));
        let Some(file) = file.filter(|file| ends_with(&file.name, GGUF)) else { return self.of_type(which) };
        let split = Split::of(&file.name);
        if split.part == 1 { Some(file) } else { self.list.find(&split.name(1)) }
    }

    /// The default: the only file, or Q4_K_M, or the smallest file of a ternary or binary type.
    fn usual(&self) -> Option<&'a File> {
        const TYPES: [&str; 9] =
            ["I2_S", "TQ2_0", "TQ1_0", "Q1_0", "Q2_0", "PQ2_0", "PTQ1_0", "IQ1_BN", "IQ2_BN"];
        let mut models = self.models();
        if let (Some(only), None) = (models.next(), models.next()) {
            return Some(only);
        }
        let smallest = || TYPES.iter().filter_map(|kind| self.of_type(kind)).min_by_key(|file| file.size);
        self.of_type("Q4_K_M").or_else(smallest)
    }

    fn folder(&self) -> Result<Choice<'a>> {
        let single = self.list.find("model.safetensors");
        let index = self.list.find(INDEX);
        if self.list.find("config.json").is_none() || (single.is_none() && index.is_none()) {
            return Err(self.refusal(
                " has neither one GGUF file of the usual types nor config.json with model.safetensors. \
                 Add a file or its type, as hf:OWNER/NAME:Q8_0. It has:",
            ));
        }
        let mut files: Vec<&File> = self.list.files().iter().filter(|file| belongs(&file.name)).collect();
        files.extend(single.filter(|_| index.is_none()));
        Ok(Choice { files, entry: "" })
    }

    /// An error that lists the choices.
    fn refusal(&self, why: &str) -> Error {
        const MOST: usize = 40;
        let mut text = format!("{}{why}", self.place);
        let is_listed = |file: &&File| is_model(&file.name) || ends_with(&file.name, ".safetensors");
        let count = self.list.files().iter().filter(is_listed).count();
        for file in self.list.files().iter().filter(is_listed).take(MOST) {
            _ = write!(text, "\n  {:<9}  {}", bytes(file.size), file.name);
        }
        if count > MOST {
            _ = write!(text, "\n  and {} more", count - MOST);
        }
        if count == 0 {
            text.push_str("\n  no GGUF and no safetensors files");
        }
        Error::failed(text)
    }
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

fn read_index(path: &Path) -> Option<Index> {
    let mut text = Vec::new();
    fs::File::open(path).ok()?.take(LONGEST_INDEX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

/// The name of a split file, STEM-00001-of-00003.gguf. Without numbers, both are 1.
struct Split<'a> {
    stem: &'a str,
    part: u32,
    parts: u32,
}

impl<'a> Split<'a> {
    /// Splits a name that ends with .gguf.
    fn of(name: &'a str) -> Self {
        let stem = &name[..name.len() - GGUF.len()];
        Self::numbered(stem).unwrap_or(Self { stem, part: 1, parts: 1 })
    }

    fn numbered(stem: &'a str) -> Option<Self> {
        let number = |digits: &str| match digits.len() == 5 && digits.bytes().all(|b| b.is_ascii_digit()) {
            true => digits.parse().ok(),
            false => None,
        };
        let (rest, parts) = stem.rsplit_once("-of-")?;
        let (stem, part) = rest.rsplit_once('-').filter(|(stem, _)| !stem.is_empty())?;
        Some(Self { stem, part: number(part)?, parts: number(parts)? })
    }

    fn name(&self, part: u32) -> String {
        self.stem_of(part) + GGUF
    }

    fn stem_of(&self, part: u32) -> String {
        format!("{}-{part:05}-of-{:05}", self.stem, self.parts)
    }
}

fn ends_with(text: &str, end: &str) -> bool {
    let start = text.len().checked_sub(end.len());
    start.is_some_and(|start| text.as_bytes()[start..].eq_ignore_ascii_case(end.as_bytes()))
}

/// The name without `.gguf` at its end.
pub fn without_gguf(name: &str) -> &str {
    if ends_with(name, GGUF) { &name[..name.len() - GGUF.len()] } else { name }
}

/// Whether a file with this name represents a model in a list: a GGUF file, or the first part of one.
pub fn is_model(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.ends_with(GGUF)
        && !lower.contains("mmproj")
        && !lower.contains("imatrix")
        && Split::of(name).part == 1
}

/// The names of all files of the model that begins with the file of this name.
pub fn parts_of(name: &str) -> impl Iterator<Item = String> {
    let split = ends_with(name, GGUF).then(|| Split::of(name)).filter(|split| split.parts > 1);
    let end = &name[name.len() - split.as_ref().map_or(0, |_| GGUF.len())..];
    (1..=split.as_ref().map_or(1, |split| split.parts)).map(move |part| match &split {
        Some(split) => format!("{}{end}", split.stem_of(part)),
        None => name.to_owned(),
    })
}

/// Whether a model's name ends with the type, as a word.
fn has_type(name: &str, kind: &str) -> bool {
    let stem = Split::of(name).stem;
    ends_with(stem, kind)
        && matches!(stem.as_bytes()[..stem.len() - kind.len()].last(), None | Some(b'-' | b'.' | b'_' | b'/'))
}

/// Files beside the weights: at the top, and those of a sentence-transformers module (1_Pooling, 2_Dense).
fn belongs(name: &str) -> bool {
    let Some((folder, file)) = name.split_once('/') else {
        return ends_with(name, ".json") || ends_with(name, ".jinja");
    };
    let digits = folder.len() - folder.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let is_module = digits > 0 && folder[digits..].starts_with('_');
    is_module && matches!(file, "config.json" | "model.safetensors")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(files: &[(&str, u64)]) -> List {
        let mut list = List::new("");
        for &(name, size) in files {
            list.add(name.to_owned(), String::new(), size);
        }
        list
    }

    fn choose(files: &[(&str, u64)], which: Option<&str>) -> std::result::Result<Vec<String>, String> {
        let list = list(files);
        let chosen = Chooser { place: "tiny/model".to_owned(), list: &list }.choose(which);
        let chosen = chosen.map_err(|error| error.to_string())?;
        Ok(chosen.files.iter().map(|file| file.name.clone()).collect())
    }

    const SEVERAL: [(&str, u64); 7] = [
        ("README.md", 1),
        ("mmproj-Q8_0.gguf", 2),
        ("m-Q8_0.gguf", 9000),
        ("m-TQ2_0.gguf", 20),
        ("m-I2_S.gguf", 30),
        ("longer/m-Q8_0.gguf", 10),
        ("m.imatrix.gguf", 5),
    ];

    #[test]
    fn without_a_type_it_is_the_only_one_or_a_usual_one() {
        assert_eq!(choose(&[("a-Q8_0.gguf", 1), ("mmproj-F16.gguf", 1)], None).unwrap(), ["a-Q8_0.gguf"]);
        assert_eq!(choose(&[("a-q4_k_m.GGUF", 9), ("a-TQ2_0.gguf", 1)], None).unwrap(), ["a-q4_k_m.GGUF"]);
        assert_eq!(choose(&SEVERAL, None).unwrap(), ["m-TQ2_0.gguf"]);
    }

    #[test]
    fn a_type_is_a_word_at_the_end_of_the_shortest_name() {
        assert_eq!(choose(&SEVERAL, Some("q8_0")).unwrap(), ["m-Q8_0.gguf"]);
        assert_eq!(choose(&SEVERAL, Some("longer/m-Q8_0")).unwrap(), ["longer/m-Q8_0.gguf"]);
        assert_eq!(choose(&SEVERAL, Some("m-I2_S.gguf")).unwrap(), ["m-I2_S.gguf"]);
        assert_eq!(choose(&SEVERAL, Some("mmproj-Q8_0.gguf")).unwrap(), ["mmproj-Q8_0.gguf"]);
        let refused = choose(&SEVERAL, Some("8_0\x1b")).unwrap_err();
        assert!(refused.contains(
            "no GGUF file or type '8_0'. It has:\n  8.8 KiB    m-Q8_0.gguf\n  20 bytes   m-TQ2_0.gguf"
        ));
        assert!(choose(&SEVERAL, Some("8_0")).is_err());
    }

    #[test]
    fn the_part_that_sees_is_beside_the_model_or_at_the_top() {
        let list = list(&[
            ("q/m-Q8_0-00001-of-00002.gguf", 1),
            ("q/m-Q8_0-00002-of-00002.gguf", 1),
            ("m-Q4_K_M.gguf", 1),
            ("mmproj-F32.gguf", 1),
            ("mmproj-F16.gguf", 1),
            ("x/m-Q8_0.gguf", 1),
            ("x/mmproj-F32.gguf", 1),
        ]);
        let chooser = Chooser { place: String::new(), list: &list };
        for (model, part) in [
            ("q/m-Q8_0-00001-of-00002.gguf", "mmproj-F16.gguf"),
            ("m-Q4_K_M.gguf", "mmproj-F16.gguf"),
            ("x/m-Q8_0.gguf", "x/mmproj-F32.gguf"),
        ] {
            assert_eq!(chooser.part(model).map(|file| file.name.as_str()), Some(part), "{model}");
        }
    }

    #[test]
    fn all_parts_of_a_split_file_come() {
        let parts = [
            ("q/m-Q8_0-00001-of-00003.gguf", 1),
            ("q/m-Q8_0-00002-of-00003.gguf", 1),
            ("q/m-Q8_0-00003-of-00003.gguf", 1),
        ];
        let names: Vec<&str> = parts.iter().map(|part| part.0).collect();
        for which in
            [None, Some("Q8_0"), Some("q/m-Q8_0-00001-of-00003.gguf"), Some("q/m-Q8_0-00003-of-00003.gguf")]
        {
            assert_eq!(choose(&parts, which).unwrap(), names);
        }
        let refused = choose(&[parts[0], parts[2]], None).unwrap_err();
        assert_eq!(refused, "tiny/model lacks q/m-Q8_0-00002-of-00003.gguf");
        assert_eq!(choose(&[("-00001-of-00003.gguf", 1)], None).unwrap(), ["-00001-of-00003.gguf"]);
        assert_eq!(choose(&[("a-1-of-00003.gguf", 1)], None).unwrap(), ["a-1-of-00003.gguf"]);
    }

    #[test]
    fn of_a_folder_what_the_model_needs_comes() {
        let folder = [
            ("config.json", 1),
            ("model.safetensors", 2),
            ("tokenizer.json", 3),
            ("chat_template.jinja", 4),
            ("pytorch_model.bin", 5),
            ("onnx/config.json", 6),
            ("1_Pooling/config.json", 7),
            ("1_Pooling/other.json", 8),
        ];
        let needed = [
            "config.json",
            "tokenizer.json",
            "chat_template.jinja",
            "1_Pooling/config.json",
            "model.safetensors",
        ];
        assert_eq!(choose(&folder, None).unwrap(), needed);
        assert!(choose(&folder[1..], None).unwrap_err().contains("\n  2 bytes    model.safetensors"));
        assert!(choose(&[("a", 1)], None).unwrap_err().ends_with("\n  no GGUF and no safetensors files"));
    }

    #[test]
    fn an_index_names_each_shard_once_and_only_what_is_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("index");
        let list = list(&[("b.safetensors", 1), ("a.safetensors", 1)]);
        let chooser = Chooser { place: "tiny/model".to_owned(), list: &list };
        let shards = |text: &str| {
            fs::write(&path, text).unwrap();
            let names = |files: Vec<&File>| files.iter().map(|file| file.name.clone()).collect::<Vec<_>>();
            chooser.shards(&path).map(names).map_err(|error| error.to_string())
        };
        let text = r#"{"metadata": {}, "weight_map": {"x": "b.safetensors", "y": "a.safetensors", "z": "b.safetensors"}}"#;
        assert_eq!(shards(text).unwrap(), ["a.safetensors", "b.safetensors"]);
        assert_eq!(shards(r#"{"weight_map": {"x": "c\u001b[2J"}}"#).unwrap_err(), "tiny/model lacks c[2J");
        assert!(shards(r#"{"weight_map": {"x": 1}}"#).unwrap_err().ends_with("no list of safetensors files"));
    }

    #[test]
    fn long_refusals_are_cut() {
        let names: Vec<String> = (0..40_000).map(|i| format!("m{i}-Q8_0.gguf")).collect();
        let files: Vec<(&str, u64)> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let refused = choose(&files, Some("Q2_K")).unwrap_err();
        assert_eq!(refused.lines().count(), 42);
        assert!(refused.ends_with("\n  and 39960 more"));
    }
}
