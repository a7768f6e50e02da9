//! The part of a model that sees pictures: a GGUF file of its own beside the model's, whose name has "mmproj" in it.
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::choose::{is_model, without_gguf};
use crate::printable;

const MARK: &str = "mmproj";
/// The types that are taken first of a repository that has several.
const FIRST: [&str; 3] = ["f16", "q8_0", "bf16"];

/// The file for a model among names of files.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    None,
    One(&'a str),
    /// It cannot be told which: of several types, or for other models.
    Unclear,
}

/// Whether a file with this name sees for a model.
pub fn is_part(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    lower.ends_with(".gguf") && lower.contains(MARK)
}

/// The words of a name that tell one model from others: without the type, and without what every such file has.
fn words(name: &str) -> BTreeSet<String> {
    let stem = without_gguf(name).to_ascii_lowercase();
    let words = stem.split(['-', '.', ' ', '/']).filter(|word| !is_usual(word));
    words.map(str::to_owned).collect()
}

fn is_usual(word: &str) -> bool {
    let digits = ["bf", "f", "iq", "q", "tq", "i"].iter().find_map(|kind| word.strip_prefix(kind));
    let is_type = digits.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
    is_type || ["", MARK, "model", "ud", "mxfp4"].contains(&word)
}

/// The file for `model` among the names of the files beside it. Of a repository, in which there is one model, it is
/// the file of a usual type.
pub fn part_of<'a>(model: &str, names: &[&'a str], repository: bool) -> Part<'a> {
    let own = words(model);
    let parts: Vec<_> = names.iter().filter(|name| is_part(name)).map(|name| (*name, words(name))).collect();
    let alone = repository || names.iter().all(|name| !is_model(name) || words(name) == own);
    let fitting = |(_, of): &&(&str, BTreeSet<String>)| of.is_subset(&own) && (alone || !of.is_empty());
    let nearest = parts.iter().filter(fitting).map(|(_, of)| of.len()).max();
    let near = parts.iter().filter(fitting).filter(|(_, of)| Some(of.len()) == nearest);
    let mut found: Vec<&str> = near.map(|(name, _)| *name).collect();
    if found.is_empty() && repository {
        found = parts.iter().map(|(name, _)| *name).collect();
    }
    // Those with names belong to the other models.
    let unclear = parts.iter().any(|(_, of)| alone || of.is_empty());
    match found[..] {
        [one] => Part::One(one),
        [] if !unclear => Part::None,
        [first, ..] if repository => {
            Part::One(found.iter().copied().min_by_key(|name| rank(name)).unwrap_or(first))
        }
        _ => Part::Unclear,
    }
}

/// The place of a file among those of several types.
fn rank(name: &str) -> (usize, usize) {
    let lower = without_gguf(name).to_ascii_lowercase();
    let is = |kind: &&str| lower.split(['-', '.']).any(|word| word == *kind);
    (FIRST.iter().position(is).unwrap_or(FIRST.len()), name.len())
}

/// The file beside a model's GGUF file. Err: why none of those that are there is taken.
pub fn beside(model: &Path) -> Result<Option<PathBuf>, String> {
    let (Some(name), Some(folder)) = (model.file_name().and_then(|name| name.to_str()), model.parent())
    else {
        return Ok(None);
    };
    if !is_model(name) || !model.is_file() {
        return Ok(None);
    }
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let files = fs::read_dir(folder).into_iter().flatten().flatten();
    let names: Vec<_> = files.filter_map(|file| file.file_name().into_string().ok()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    match part_of(name, &names, false) {
        Part::None => Ok(None),
        Part::One(part) => Ok(Some(folder.join(part))),
        Part::Unclear => {
            let mut parts: Vec<_> = names.into_iter().filter(|name| is_part(name)).collect();
            parts.sort_unstable();
            let (name, parts) = (printable(name), parts.join(", "));
            Err(format!(
                "{name} sees no images until --pictures names one of these vision parts: {}",
                printable(&parts)
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_one_model_needs_no_names() {
        let names = ["m-Q4_K_M.gguf", "m-UD-Q8_0.gguf", "mmproj-F16.gguf", "README.md"];
        assert_eq!(part_of("m-Q4_K_M.gguf", &names, false), Part::One("mmproj-F16.gguf"));
        assert_eq!(part_of("m-Q4_K_M.gguf", &names[..2], false), Part::None);
        let two = ["m-Q4_K_M.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf", "mmproj-F32.gguf"];
        assert_eq!(part_of("m-Q4_K_M.gguf", &two, false), Part::Unclear);
        assert_eq!(part_of("m-Q4_K_M.gguf", &two, true), Part::One("mmproj-F16.gguf"));
    }

    #[test]
    fn in_a_folder_of_several_models_names_must_agree() {
        let names = [
            "gemma-3-4b-it-Q4_K_M.gguf",
            "Llama-3.2-1B.gguf",
            "Llama-3.2-1B-00001-of-00002.gguf",
            "mmproj-gemma-3-4b-it-f16.gguf",
            "qwen-2b.gguf",
            "qwen-2b-tuned.gguf",
            "qwen-2b.mmproj-Q8_0.gguf",
            "qwen-2b-tuned-mmproj-Q8_0.gguf",
        ];
        for (model, wanted) in [
            ("gemma-3-4b-it-Q4_K_M.gguf", Part::One("mmproj-gemma-3-4b-it-f16.gguf")),
            ("Llama-3.2-1B.gguf", Part::None),
            ("qwen-2b.gguf", Part::One("qwen-2b.mmproj-Q8_0.gguf")),
            ("qwen-2b-tuned.gguf", Part::One("qwen-2b-tuned-mmproj-Q8_0.gguf")),
        ] {
            assert_eq!(part_of(model, &names, false), wanted, "{model}");
        }
        let unnamed = ["a-Q8_0.gguf", "b-Q8_0.gguf", "mmproj-F16.gguf"];
        assert_eq!(part_of("a-Q8_0.gguf", &unnamed, false), Part::Unclear);
        assert_eq!(part_of("a-Q8_0.gguf", &unnamed, true), Part::One("mmproj-F16.gguf"));
        let renamed = ["mine.gguf", "mmproj-gemma-F16.gguf"];
        assert_eq!(part_of("mine.gguf", &renamed, false), Part::Unclear);
    }

    #[test]
    fn a_repositorys_file_may_have_any_name() {
        let names =
            ["m-Q8_0.gguf", "mmproj-Other-BF16.gguf", "mmproj-Other-Q8_0.gguf", "mmproj-Other-F32.gguf"];
        assert_eq!(part_of("m-Q8_0.gguf", &names, true), Part::One("mmproj-Other-Q8_0.gguf"));
    }

    #[test]
    fn files_beside_a_model_are_looked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let model = path("m-Q8_0.gguf");
        assert_eq!(beside(&model), Ok(None));
        fs::write(&model, "").unwrap();
        assert_eq!(beside(&model), Ok(None));
        fs::write(path("mmproj-F16.gguf"), "").unwrap();
        assert_eq!(beside(&model), Ok(Some(path("mmproj-F16.gguf"))));
        assert_eq!(beside(&path("mmproj-F16.gguf")), Ok(None));
        assert_eq!(beside(folder.path()), Ok(None));
        fs::write(path("mmproj-F32.gguf"), "").unwrap();
        let why = "m-Q8_0.gguf sees no images until --pictures names one of these vision parts: \
                   mmproj-F16.gguf, mmproj-F32.gguf";
        assert_eq!(beside(&model), Err(why.to_owned()));
    }
}
