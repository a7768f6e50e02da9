//! A Hugging Face folder: its files, read or mapped, and its tensors by name.
//!
//! Nothing outside of the folder is opened: names are plain file names, and a link that leads out is refused. The
//! exception is a snapshot in a Hugging Face cache, whose files are links to the `blobs` beside `snapshots`.

pub mod index;
#[cfg(test)]
mod tests;

use crate::base::{Bytes, Error, Result, Status, os};
use crate::formats::no_lfs_pointer;
use crate::formats::safetensors::{SafeTensors, TensorInfo};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf, is_separator};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// An index has about 90 bytes per tensor.
const MAX_INDEX_BYTES: u64 = 32 << 20;
/// Maximum number of files with tensors of one model.
const MAX_SHARDS: usize = 1 << 10;

/// An opened folder.
pub struct Folder {
    /// Path without links. Everything that is opened is below it.
    root: PathBuf,
    /// For a snapshot in a cache: the folder that its links lead to.
    blobs: Option<PathBuf>,
    /// Name of the folder in errors: the path as the caller wrote it.
    what: String,
}

impl Folder {
    /// Opens the folder at `path`. `Io` if there is none.
    pub fn open(path: &str) -> Result<Self> {
        let io_error =
            |e: io::Error| Error::new(Status::Io, format!("cannot open model folder '{path}': {e}"));
        let root = std::fs::canonicalize(path).map_err(io_error)?;
        if !root.metadata().map_err(io_error)?.is_dir() {
            return Err(Error::new(
                Status::Io,
                format!("cannot open model folder '{path}': it is no folder"),
            ));
        }
        let what = match path.trim_end_matches(is_separator) {
            "" => "/",
            what => what,
        };
        Ok(Self { blobs: blobs_of(&root), root, what: what.to_owned() })
    }

    /// Name of the folder in errors.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// A name for the model: the folder's name, or MODEL of a cache's `models--OWNER--MODEL`.
    pub fn name(&self) -> &str {
        let cached = self.blobs.as_ref().and_then(|blobs| blobs.parent()?.file_name()?.to_str());
        let name = cached.and_then(|name| name.rsplit("--").next());
        name.or_else(|| self.what.rsplit(is_separator).next()).unwrap_or_default()
    }

    /// Name of one of its files in errors.
    pub fn path_of(&self, name: &str) -> String {
        format!("{}/{name}", self.what)
    }

    /// Whether a file or folder with this name exists.
    pub fn has(&self, name: &str) -> bool {
        self.root.join(name).exists()
    }

    /// Reads file `name`, or returns `None` if there is none. `BadModel` if it has more than `max` bytes or is not in
    /// the folder.
    pub fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let Some((file, len)) = self.file(name)? else { return Ok(None) };
        if len > max {
            return Err(self.bad(name, format_args!("it has {len} bytes; at most {max} are read")));
        }
        let mut bytes = Vec::new();
        let size = usize::try_from(len).unwrap_or(usize::MAX);
        bytes.try_reserve_exact(size).map_err(|_| Error::out_of_memory(&self.path_of(name), size))?;
        // A file that grows meanwhile is read up to its old length.
        file.take(len).read_to_end(&mut bytes).map_err(|e| self.io(name, e))?;
        no_lfs_pointer(&bytes, &self.path_of(name))?;
        Ok(Some(bytes))
    }

    /// Maps file `name`, or returns `None` if there is none. As for GGUF files, the file must not be
    /// truncated or rewritten while the engine lives.
    pub fn map(&self, name: &str) -> Result<Option<Bytes>> {
        let Some((file, len)) = self.file(name)? else { return Ok(None) };
        if len == 0 {
            return Err(self.bad(name, "the file is empty"));
        }
        // SAFETY: the mapping is private and read-only and outlives every view of it (`Bytes` owns it). The
        // caller must ensure that the file is not truncated or rewritten meanwhile.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| self.io(name, e))?;
        no_lfs_pointer(&map, &self.path_of(name))?;
        Ok(Some(Bytes::of_file(map)))
    }

    /// Opens the regular file `name`: a plain name, or one below a folder that we name ourselves.
    fn file(&self, name: &str) -> Result<Option<(File, u64)>> {
        let path = self.root.join(name);
        let real = match std::fs::canonicalize(&path) {
            Ok(real) => real,
            // A link that leads nowhere does not count as a missing file.
            Err(e) if e.kind() == io::ErrorKind::NotFound && std::fs::symlink_metadata(&path).is_err() => {
                return Ok(None);
            }
            Err(e) => return Err(self.io(name, e)),
        };
        if !real.starts_with(&self.root)
            && self.blobs.as_deref().is_none_or(|blobs| real.parent() != Some(blobs))
        {
            return Err(self.bad(
                name,
                format_args!(
                    "it is a link to '{}', outside of the folder, and not to the 'blobs' of a Hugging Face cache: \
                     give a folder with the files themselves (`hf download --local-dir`, `cp -rL`)",
                    real.display()
                ),
            ));
        }
        let file = os::open_no_link(&real).map_err(|e| self.io(name, e))?;
        let stat = file.metadata().map_err(|e| self.io(name, e))?;
        if !stat.is_file() {
            return Err(self.io(name, "it is not a regular file"));
        }
        Ok(Some((file, stat.len())))
    }

    fn io(&self, name: &str, e: impl std::fmt::Display) -> Error {
        Error::new(Status::Io, format!("cannot open '{}': {e}", self.path_of(name)))
    }

    fn bad(&self, name: &str, message: impl std::fmt::Display) -> Error {
        Error::bad_model(format!("{}: {message}", self.path_of(name)))
    }
}

/// `MODEL/blobs` for `MODEL/snapshots/REVISION`, if it is a folder and not a link.
fn blobs_of(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent().filter(|folder| folder.ends_with("snapshots"))?;
    let blobs = snapshots.parent()?.join("blobs");
    std::fs::symlink_metadata(&blobs).is_ok_and(|blobs| blobs.is_dir()).then_some(blobs)
}

/// The tensors of a folder, in one file or several.
pub struct Tensors {
    shards: Vec<SafeTensors>,
    by_name: HashMap<String, usize>,
}

impl Tensors {
    /// Opens `model.safetensors`, or the files that `model.safetensors.index.json` names. `Io` if there is neither.
    pub fn open(folder: &Folder) -> Result<Self> {
        if let Some(bytes) = folder.map(SINGLE)? {
            return Self::of_shards(vec![SafeTensors::from_bytes(bytes, &folder.path_of(SINGLE))?]);
        }
        let Some(json) = folder.read(INDEX, MAX_INDEX_BYTES)? else {
            let message = format!("'{}' has neither {SINGLE} nor {INDEX}{}", folder.what(), other(folder));
            return Err(Error::new(Status::Io, message));
        };
        let index = index::parse(&json, &folder.path_of(INDEX))?;
        let mut shards: Vec<SafeTensors> = Vec::new();
        for file in &index.files {
            let bytes = folder.map(file)?.ok_or_else(|| {
                folder.bad(INDEX, format_args!("weight_map names '{file}', and there is no such file"))
            })?;
            shards.push(SafeTensors::from_bytes(bytes, &folder.path_of(file))?);
        }
        let tensors = Self::of_shards(shards)?;
        for (name, file) in &index.tensors {
            if tensors.by_name.get(name.as_ref()) != Some(file) {
                let file = &index.files[*file];
                let why = format_args!("weight_map has tensor '{name}' in '{file}', and it is not there");
                return Err(folder.bad(INDEX, why));
            }
        }
        Ok(tensors)
    }

    fn of_shards(shards: Vec<SafeTensors>) -> Result<Self> {
        let mut by_name: HashMap<String, usize> = HashMap::new();
        for (i, shard) in shards.iter().enumerate() {
            let more = shard.tensors().len();
            by_name.try_reserve(more).map_err(|_| Error::out_of_memory("tensor names", 32 * more))?;
            for tensor in shard.tensors() {
                if let Some(first) = by_name.insert(tensor.name.clone(), i) {
                    return Err(Error::bad_model(format!(
                        "tensor '{}' lies in '{}' and in '{}'",
                        tensor.name,
                        shards[first].what(),
                        shard.what()
                    )));
                }
            }
        }
        Ok(Self { shards, by_name })
    }

    /// All tensors, each with its file.
    pub fn iter(&self) -> impl Iterator<Item = (&SafeTensors, &TensorInfo)> {
        self.shards.iter().flat_map(|shard| shard.tensors().iter().map(move |t| (shard, t)))
    }

    pub fn find(&self, name: &str) -> Option<(&SafeTensors, &TensorInfo)> {
        let shard = &self.shards[*self.by_name.get(name)?];
        Some((shard, shard.tensor(name)?))
    }

    /// Bytes of the files outside of tensors.
    pub fn header_bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.header_bytes() as u64).sum()
    }
}

/// Hint for a user who gave a folder without `config.json` or safetensors.
pub fn other(folder: &Folder) -> &'static str {
    if folder.has("pytorch_model.bin") || folder.has("pytorch_model.bin.index.json") {
        return "; pickled weights (pytorch_model.bin) are not read: save the model as safetensors";
    }
    if folder.has("snapshots") && folder.has("blobs") {
        return "; it is a model in a Hugging Face cache: give a folder in its 'snapshots'";
    }
    let gguf = |entry: io::Result<std::fs::DirEntry>| {
        entry.is_ok_and(|entry| entry.path().extension().is_some_and(|e| e == "gguf"))
    };
    match std::fs::read_dir(&folder.root).is_ok_and(|mut entries| entries.any(gguf)) {
        true => "; it has a GGUF file: give that file's path",
        false => "",
    }
}
