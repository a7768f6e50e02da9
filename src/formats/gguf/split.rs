//! Models in several files, `<name>-00001-of-00003.gguf` and so on, as llama.cpp's gguf-split writes them. Each is a
//! GGUF file of its own, with `split.no` (counted from 0), `split.count` and `split.tensors.count`.

use super::{Gguf, MAX_ENTRIES, map};
use crate::base::{Error, Result};

/// Joins all parts of the model of which `found`, the file at `path`, is one. The parts are in its folder, and the
/// first has the metadata. Errors name the part that is missing or wrong.
pub(super) fn join(path: &str, found: Gguf) -> Result<Gguf> {
    let count = found.split_count()?;
    let number: u32 = found.get("split.no")?;
    if number >= count || count > u16::MAX as u32 {
        return Err(found.error(format_args!("split.no is {number} of a split.count of {count}")));
    }
    let ending = ending(number, count);
    let Some(name) = path.strip_suffix(&ending) else {
        return Err(found.error(format_args!(
            "it is part {} of {count} of a model, but its name does not end in '{ending}', so that the others can't \
             be found",
            number + 1
        )));
    };
    let mut found = Some(found);
    let mut whole: Option<Gguf> = None;
    for n in 0..count {
        let part = match found.take_if(|_| n == number) {
            Some(part) => part,
            None => open_part(name, n, count)?,
        };
        match &mut whole {
            None => whole = Some(part),
            Some(whole) => append(whole, part)?,
        }
    }
    let whole = whole.ok_or_else(|| Error::internal("a split model has parts"))?;
    match whole.find::<u32>("split.tensors.count")? {
        Some(tensors) if tensors as usize != whole.tensors.len() => Err(whole.error(format_args!(
            "split.tensors.count is {tensors}, but the {count} parts hold {}",
            whole.tensors.len()
        ))),
        _ => Ok(whole),
    }
}

fn ending(number: u32, count: u32) -> String {
    format!("-{:05}-of-{count:05}.gguf", number + 1)
}

fn open_part(name: &str, number: u32, count: u32) -> Result<Gguf> {
    let path = format!("{name}{}", ending(number, count));
    let bytes = map(&path).map_err(|e| {
        Error::new(e.status, format!("{}; it is part {} of {count} of the model", e.message, number + 1))
    })?;
    let part = Gguf::parse(bytes, &path)?;
    let (no, of): (u32, u32) = (part.get("split.no")?, part.get("split.count")?);
    if (no, of) != (number, count) {
        return Err(part.error(format_args!(
            "split.no is {no} and split.count {of}, where {number} and {count} belong to its name"
        )));
    }
    Ok(part)
}

fn append(whole: &mut Gguf, part: Gguf) -> Result<()> {
    let at = whole.files.len();
    for mut info in part.tensors {
        let index = whole.tensors.len();
        if index == MAX_ENTRIES {
            return Err(whole.error(format_args!("its parts have more than {MAX_ENTRIES} tensors")));
        }
        if whole.by_name.insert(info.name.clone(), index).is_some() {
            return Err(Error::bad_model(format!(
                "{}: tensor '{}' stands in another part too",
                part.files[0].what, info.name
            )));
        }
        info.part = at;
        whole.tensors.push(info);
    }
    whole.files.extend(part.files);
    Ok(())
}
