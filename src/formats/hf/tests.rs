use super::*;
use crate::base::error::refusals;
// Windows lets few users make links.
#[cfg(unix)]
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A folder that is removed after the test.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("bn-folder-{}-{n}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn put(&self, name: &str, bytes: impl AsRef<[u8]>) -> &Self {
        std::fs::write(self.0.join(name), bytes).unwrap();
        self
    }

    fn folder(&self) -> Folder {
        Folder::open(self.0.to_str().unwrap()).unwrap()
    }

    fn refused(&self) -> Error {
        Tensors::open(&self.folder()).err().expect("the folder was taken")
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A file with tensors `names` of one byte each.
fn shard(names: &[&str]) -> Vec<u8> {
    let one = |(i, name): (usize, &&str)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{i},{}]}}"#, i + 1)
    };
    let header = format!("{{{}}}", names.iter().enumerate().map(one).collect::<Vec<_>>().join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    file.extend((0..names.len()).map(|i| i as u8 + 7));
    file
}

fn index(map: &[(&str, &str)]) -> String {
    let map: Vec<_> = map.iter().map(|(name, file)| format!(r#""{name}":"{file}""#)).collect();
    format!(r#"{{"metadata":{{"total_size":3}},"weight_map":{{{}}}}}"#, map.join(","))
}

#[test]
fn one_file_or_several() {
    let single = Temporary::new();
    single.put("model.safetensors", shard(&["a", "b"]));
    let tensors = Tensors::open(&single.folder()).unwrap();
    let (file, info) = tensors.find("b").unwrap();
    assert_eq!(file.data(info).unwrap()[..], [8]);

    let several = Temporary::new();
    several.put("m-1.safetensors", shard(&["a"])).put("m-2.safetensors", shard(&["b", "c"]));
    let map = [("a", "m-1.safetensors"), ("b", "m-2.safetensors"), ("c", "m-2.safetensors")];
    several.put("model.safetensors.index.json", index(&map));
    let tensors = Tensors::open(&several.folder()).unwrap();
    let names: Vec<_> = tensors.iter().map(|(_, t)| t.name.as_str()).collect();
    assert_eq!(names, ["a", "b", "c"]);
    assert_eq!(tensors.find("c").unwrap().0.what(), several.folder().path_of("m-2.safetensors"));
    assert!(tensors.find("d").is_none());
}

#[test]
fn an_index_must_tell_the_truth() {
    let t = Temporary::new();
    t.put("1.safetensors", shard(&["a"])).put("2.safetensors", shard(&["a", "b"]));
    let check = |map: &[(&str, &str)], part: &str| {
        t.put("model.safetensors.index.json", index(map));
        let error = t.refused();
        assert_eq!(error.status, Status::BadModel);
        assert!(error.message.contains(part), "{error}");
    };
    check(&[("b", "1.safetensors")], "tensor 'b' in '1.safetensors', and it is not there");
    check(&[("a", "1.safetensors"), ("b", "2.safetensors")], "tensor 'a' lies in");
    check(&[("a", "3.safetensors")], "'3.safetensors', and there is no such file");
    check(&[("could not allocate", "../a.safetensors")], "'could not allocate'");
    let map = index(&[("a", "1.safetensors"), ("b", "2.safetensors")]);
    refusals::refuse_after(Some(1));
    let error = index::parse(map.as_bytes(), "x").err().unwrap();
    refusals::refuse_after(None);
    assert_eq!(error.status, Status::OutOfMemory);
}

#[test]
fn an_index_names_plain_files_only() {
    let t = Temporary::new();
    std::fs::create_dir(t.0.join("sub")).unwrap();
    for name in ["sub/1.safetensors", "0.safetensors"] {
        t.put(name, shard(&["a"]));
    }
    // In JSON, a separator of Windows is escaped.
    let absolute = t.0.join("0.safetensors").to_str().unwrap().replace('\\', "\\\\");
    let outside =
        ["../x.safetensors", "sub/1.safetensors", absolute.as_str(), "..", ".", "", "./0.safetensors"];
    for file in outside.into_iter().chain([
        "/etc/passwd",
        "a\\\\b.safetensors",
        "config.json",
        "0\\u0000.safetensors",
    ]) {
        t.put("model.safetensors.index.json", index(&[("a", file)]));
        let error = t.refused();
        assert!(error.message.contains("weight_map['a']"), "{file}: {error}");
    }
}

#[cfg(unix)]
#[test]
fn links_do_not_leave_the_folder() {
    let (t, other) = (Temporary::new(), Temporary::new());
    other.put("real.safetensors", shard(&["a"]));
    symlink(other.0.join("real.safetensors"), t.0.join("model.safetensors")).unwrap();
    let error = t.refused();
    assert_eq!(error.status, Status::BadModel);
    assert!(
        error.message.contains("outside of the folder") && error.message.contains("--local-dir"),
        "{error}"
    );
    // Links within the folder are allowed.
    std::fs::remove_file(t.0.join("model.safetensors")).unwrap();
    t.put("real", shard(&["a"]));
    symlink("real", t.0.join("model.safetensors")).unwrap();
    assert!(Tensors::open(&t.folder()).is_ok());
    // A link that leads nowhere does not count as a missing file.
    symlink("nowhere", t.0.join("config.json")).unwrap();
    assert_eq!(t.folder().read("config.json", 10).err().map(|e| e.status), Some(Status::Io));
    // The folder itself may be a link.
    symlink(&t.0, other.0.join("link")).unwrap();
    let linked = Folder::open(other.0.join("link").to_str().unwrap()).unwrap();
    assert!(Tensors::open(&linked).is_ok());
}

/// A cache: `blobs` has the files, and `snapshots/REVISION` has links to them.
#[cfg(unix)]
#[test]
fn links_of_a_cache_lead_to_its_blobs_alone() {
    let cache = Temporary::new();
    let snapshot = cache.0.join("snapshots/c0ffee");
    std::fs::create_dir_all(&snapshot).unwrap();
    std::fs::create_dir_all(cache.0.join("blobs/deeper")).unwrap();
    cache.put("blobs/1234", shard(&["a"])).put("blobs/deeper/1234", shard(&["a"])).put("1234", shard(&["a"]));
    let folder = || Folder::open(snapshot.to_str().unwrap()).unwrap();
    let link = snapshot.join("model.safetensors");
    symlink("../../blobs/1234", &link).unwrap();
    assert!(Tensors::open(&folder()).is_ok());
    // Links that end beside or below the blobs, and a blob that is a link leading out.
    symlink("../1234", cache.0.join("blobs/out")).unwrap();
    for target in ["../../1234", "../../blobs/deeper/1234", "../../blobs/out", "/etc/passwd"] {
        std::fs::remove_file(&link).unwrap();
        symlink(target, &link).unwrap();
        let error = Tensors::open(&folder()).err().expect(target);
        assert!(error.message.contains("outside of the folder"), "{target}: {error}");
    }
    // `blobs` itself may not be a link.
    std::fs::rename(cache.0.join("blobs"), cache.0.join("real")).unwrap();
    symlink("real", cache.0.join("blobs")).unwrap();
    std::fs::remove_file(&link).unwrap();
    symlink("../../blobs/1234", &link).unwrap();
    assert_eq!(Tensors::open(&folder()).err().map(|e| e.status), Some(Status::BadModel));
    // The folder above the snapshots has no model; the error names the one that has.
    assert!(cache.refused().message.contains("in its 'snapshots'"));
}

#[test]
fn pointers_of_git_lfs_are_named() {
    let t = Temporary::new();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123\n";
    t.put("model.safetensors", pointer).put("tokenizer.json", pointer);
    for error in [t.refused(), t.folder().read("tokenizer.json", 1000).unwrap_err()] {
        assert!(error.status == Status::BadModel && error.message.contains("git lfs pull"), "{error}");
    }
}

#[test]
fn what_is_no_file_is_refused() {
    let t = Temporary::new();
    assert!(t.folder().read("config.json", 10).unwrap().is_none());
    let none = t.refused();
    assert!(none.message.contains("neither model.safetensors nor"), "{none}");
    t.put("model.gguf", "");
    assert!(t.refused().message.contains("give that file's path"));
    t.put("pytorch_model.bin", "");
    assert!(t.refused().message.contains("pickled"));
    std::fs::create_dir(t.0.join("model.safetensors")).unwrap();
    assert!(t.refused().message.contains("not a regular file"));
    t.put("config.json", "01234567890");
    assert!(t.folder().read("config.json", 10).err().unwrap().message.contains("11 bytes; at most 10"));
    assert_eq!(t.folder().read("config.json", 11).unwrap().unwrap(), b"01234567890");
    assert!(Folder::open(t.0.join("config.json").to_str().unwrap()).is_err());
    t.put("empty.safetensors", "");
    t.put("model.safetensors.index.json", index(&[("a", "empty.safetensors")]));
    std::fs::remove_dir(t.0.join("model.safetensors")).unwrap();
    assert!(t.refused().message.contains("empty.safetensors: the file is empty"));
}

#[test]
fn an_index_that_is_none() {
    let t = Temporary::new();
    for json in
        ["", "{}", "[]", r#"{"weight_map":[]}"#, r#"{"weight_map":{"a":1}}"#, "{\"weight_map\":{\"a\":"]
    {
        t.put("model.safetensors.index.json", json);
        let error = t.refused();
        assert!(error.message.contains("model.safetensors.index.json: "), "{error}");
    }
}
