//! Models by name, with a small hub on 127.0.0.1: downloads, resumption, damage, caches, bounds, and stopping.
mod server;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bn_hub::{Error, Progress, Settings, resolve, resolve_seeing};
use server::{COMMIT, List, Server, sha256};

/// A guard against a hang.
const GUARD: Duration = Duration::from_secs(60);
const NAME: &str = "tiny-Q4_K_M.gguf";

/// Records the progress calls.
#[derive(Default)]
struct Heard {
    lines: Vec<String>,
    files: usize,
    most: u64,
}

impl Progress for Heard {
    fn note(&mut self, text: &str) {
        self.lines.push(text.to_owned());
    }

    fn wait(&mut self, text: &str) {
        self.lines.push(text.to_owned());
    }

    fn begin(&mut self, file: &str, size: u64) {
        self.lines.push(format!("{file} {size}"));
        self.files += 1;
    }

    fn advance(&mut self, done: u64) {
        self.most = done.max(self.most);
    }

    fn end(&mut self) {
        self.files -= 1;
    }
}

struct World {
    hub: Server,
    /// Deleted when this is dropped.
    _folder: tempfile::TempDir,
    settings: Settings,
    data: Vec<u8>,
}

impl World {
    fn new() -> Self {
        let data: Vec<u8> = (0..800_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let hub =
            Server::start(&[("README.md", b"# tiny\n"), (NAME, &data), ("tiny-Q8_0.gguf", &[b'8'; 9000])]);
        let folder = tempfile::tempdir().unwrap();
        let settings = Settings {
            endpoint: hub.url.clone(),
            cache: folder.path().join("hub"),
            token: None,
            offline: false,
        };
        Self { hub, _folder: folder, settings, data }
    }

    fn ask(&self, name: &str) -> (Result<PathBuf, Error>, Heard) {
        let mut heard = Heard::default();
        let result = resolve(name, &self.settings, &mut heard, &AtomicBool::new(false));
        assert_eq!(heard.files, 0, "each file that began has ended");
        (result, heard)
    }

    fn finds(&self) -> Heard {
        let (path, heard) = self.ask("hf:tiny/model");
        let path = path.unwrap();
        assert_eq!(path, self.model().join("snapshots").join(COMMIT).join(NAME));
        assert!(fs::read(path).unwrap() == self.data);
        heard
    }

    fn refuses(&self, words: &str) {
        let error = self.ask("hf:tiny/model").0.unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!((error.is_stopped(), error.exit_code()), (false, 1));
    }

    fn model(&self) -> PathBuf {
        self.settings.cache.join("models--tiny--model")
    }

    fn blob(&self) -> PathBuf {
        self.model().join("blobs").join(sha256(&self.data))
    }

    fn part(&self) -> PathBuf {
        self.model().join("blobs").join(format!("{}.incomplete", sha256(&self.data)))
    }

    /// Resolves the model, and sets the stop flag once `ready` returns true.
    fn stopped_when(&self, ready: impl Fn() -> bool) -> Error {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let asked = scope.spawn(|| resolve("hf:tiny/model", &self.settings, &mut (), &stop));
            wait_until(ready);
            stop.store(true, Ordering::Relaxed);
            let error = asked.join().unwrap().unwrap_err();
            assert_eq!((error.is_stopped(), error.exit_code()), (true, 130));
            error
        })
    }
}

fn wait_until(ready: impl Fn() -> bool) {
    let end = Instant::now() + GUARD;
    while !ready() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(10));
    }
}

fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_path_stays_a_path() {
    let world = World::new();
    assert!(!bn_hub::is_remote("models/x.gguf") && bn_hub::is_remote("hf:x"));
    assert_eq!(world.ask("models/x.gguf").0.unwrap(), Path::new("models/x.gguf"));
    assert!(world.hub.with(|state| state.seen.is_empty()));
}

#[test]
fn a_model_is_downloaded_once_into_the_layout_of_huggingface_hub() {
    let world = World::new();
    let heard = world.finds();
    assert_eq!((heard.lines.as_slice(), heard.most), ([format!("{NAME} 800000")].as_slice(), 800_000));
    let sum = sha256(&world.data);
    assert_eq!(names(&world.model().join("blobs")), [sum.as_str()]);
    assert_eq!(fs::read_to_string(world.model().join("refs/main")).unwrap(), COMMIT);
    assert_eq!(names(&world.model().join("refs")), ["main"]);
    assert_eq!(names(&world.model().join("snapshots").join(COMMIT)), [NAME]);
    assert_eq!(names(&world.settings.cache.join(".locks/models--tiny--model")), [format!("{sum}.lock")]);
    #[cfg(unix)]
    {
        let link = world.model().join("snapshots").join(COMMIT).join(NAME);
        assert_eq!(fs::read_link(link).unwrap(), Path::new("../../blobs").join(sum));
    }
    assert_eq!(world.finds().lines, [""; 0]);
    assert_eq!(world.hub.downloads(), [0]);
}

#[test]
fn the_cache_is_used_offline_and_without_a_hub() {
    let mut world = World::new();
    world.settings.offline = true;
    world.refuses("tiny/model is not in the cache");
    world.settings.offline = false;
    world.finds();
    world.hub.with(|state| state.list = Some(List::Status(503)));
    assert!(world.finds().lines[0].ends_with("answers with HTTP status 503: what is in the cache is used"));
    world.settings.endpoint = "http://127.0.0.1:1".to_owned();
    assert!(world.finds().lines[0].starts_with("http://127.0.0.1:1 is not reached ("));
    world.settings.offline = true;
    let asked = world.hub.with(|state| state.seen.len());
    assert_eq!(world.finds().lines, [""; 0]);
    assert_eq!(world.hub.with(|state| state.seen.len()), asked);
    assert!(
        world
            .ask("hf:tiny/model:Q8_0")
            .0
            .unwrap_err()
            .to_string()
            .contains("tiny/model in the cache has no GGUF")
    );
}

#[test]
fn a_download_goes_on_where_the_connection_ended() {
    let world = World::new();
    world.hub.with(|state| state.cuts = [500_000, 200_000].into());
    world.finds();
    assert_eq!(world.hub.downloads(), [0, 500_000, 700_000]);
}

#[test]
fn a_server_without_ranges_sends_all_of_it_again() {
    let world = World::new();
    world.hub.with(|state| {
        state.no_ranges = true;
        state.cuts = [500_000].into();
    });
    world.finds();
    assert_eq!(world.hub.downloads(), [0, 500_000]);
}

#[test]
fn attempts_without_more_bytes_than_ever_end() {
    let world = World::new();
    world.hub.with(|state| {
        state.no_ranges = true;
        state.cuts = [500_000, 300_000, 500_000, 300_000, 500_000].into();
    });
    world.refuses("of 800000 bytes have come: ");
    assert_eq!(world.hub.downloads().len(), 5);
}

#[test]
fn damage_is_found_and_deleted() {
    let world = World::new();
    world.hub.with(|state| state.damaged = 1);
    world.refuses("its checksum is not the one");
    assert!(!world.part().exists() && !world.blob().exists());
    // A damaged part of an earlier process is downloaded again.
    fs::write(world.part(), [b'x'; 1000]).unwrap();
    world.finds();
    assert_eq!(world.hub.downloads(), [0, 1000, 0]);
    // A truncated blob is not used.
    fs::write(world.blob(), &world.data[..1000]).unwrap();
    world.finds();
}

#[test]
fn sizes_are_those_that_are_listed() {
    let world = World::new();
    world.hub.with(|state| state.size = Some(799_999));
    world.refuses("longer than the 799999 bytes");
    assert!(!world.part().exists());
    world.hub.with(|state| state.size = Some(800_001));
    world.refuses("shorter than the 800001 bytes");
    // Sums of such sizes do not wrap.
    world.hub.with(|state| {
        state.files = [1, 2].map(|i| (format!("a-Q4_K_M-0000{i}-of-00002.gguf"), vec![i])).into();
        state.size = Some(u64::MAX);
    });
    world.refuses("no space left: 16777216.0 TiB are to be downloaded");
}

#[test]
fn an_endless_list_and_an_endless_file_are_cut() {
    let world = World::new();
    world.hub.with(|state| state.list = Some(List::Endless));
    world.refuses("answers with more than 64 MiB");
    world.hub.with(|state| {
        state.list = None;
        state.endless = true;
    });
    world.refuses("longer than the 800000 bytes");
    assert_eq!(names(&world.model().join("blobs")), [""; 0]);
}

#[test]
fn rubbish_is_no_list_and_its_names_do_nothing_to_a_terminal() {
    let world = World::new();
    for text in ["", "<html>", "{\"sha\": \"\\u001b[2J\", \"siblings\": []}"] {
        world.hub.with(|state| state.list = Some(List::Text(text.to_owned())));
        world.refuses("answers with no list of files");
    }
    let bad = ["../up.gguf", "/etc/x.gguf", "\x1b[2J.gguf", "\u{202e}.gguf", "a\nb.gguf", "\u{9b}A.gguf"];
    let files: Vec<_> = bad.iter().map(|name| ((*name).to_owned(), vec![0])).collect();
    world.hub.with(|state| state.list = Some(List::Text(server::listed(&files, None))));
    world.refuses("no GGUF and no safetensors files");
}

#[test]
fn forty_thousand_files_are_listed_and_chosen_from() {
    let world = World::new();
    let many = (0..40_000).map(|i| (format!("{i}.json"), Vec::new()));
    world.hub.with(|state| state.files.extend(many));
    world.finds();
    assert_eq!(world.hub.downloads(), [0]);
}

#[test]
fn a_folder_of_forty_thousand_weights_is_found_in_the_cache() {
    let mut world = World::new();
    let snapshot = world.model().join("snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir_all(world.model().join("refs")).unwrap();
    fs::write(world.model().join("refs/main"), COMMIT).unwrap();
    let shards: Vec<String> = (0..40_000).map(|i| format!("model-{i}.safetensors")).collect();
    let map: serde_json::Map<_, _> =
        shards.iter().map(|shard| (format!("of {shard}"), shard.clone().into())).collect();
    let index = serde_json::json!({"weight_map": map}).to_string();
    fs::write(snapshot.join("model.safetensors.index.json"), index).unwrap();
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    shards.iter().for_each(|shard| fs::write(snapshot.join(shard), "").unwrap());
    world.settings.offline = true;
    assert_eq!(world.ask("hf:tiny/model").0.unwrap(), snapshot);
    fs::remove_file(snapshot.join(&shards[39_999])).unwrap();
    world.refuses("tiny/model in the cache lacks model-39999.safetensors");
}

#[test]
fn a_folder_comes_with_the_weights_of_its_index() {
    let world = World::new();
    let index = br#"{"weight_map": {"x": "b.safetensors", "y": "a.safetensors"}}"#;
    let files: [(&str, &[u8]); 6] = [
        ("config.json", b"{}"),
        ("model.safetensors.index.json", index),
        ("a.safetensors", b"a"),
        ("b.safetensors", b"b"),
        ("pytorch_model.bin", b"no"),
        ("1_Pooling/config.json", b"{ }"),
    ];
    world.hub.with(|state| state.files = files.map(|(name, data)| (name.to_owned(), data.to_vec())).into());
    let folder = world.ask("hf:tiny/model").0.unwrap();
    let expected =
        ["1_Pooling", "a.safetensors", "b.safetensors", "config.json", "model.safetensors.index.json"];
    assert_eq!(names(&folder), expected);
    assert_eq!(fs::read(folder.join("1_Pooling/config.json")).unwrap(), b"{ }");
    assert_eq!(fs::read(folder.join("a.safetensors")).unwrap(), b"a");
}

#[test]
fn a_token_goes_to_the_hub_alone() {
    let mut world = World::new();
    world.hub.with(|state| state.token = Some("secret".to_owned()));
    world.refuses("and set HF_TOKEN to it");
    world.settings.token = Some("other".to_owned());
    world.refuses("the owner of this token");
    world.settings.token = Some("secret".to_owned());
    world.hub.with(|state| state.seen.clear());
    world.finds();
    let sent = |lines: &Vec<String>| lines.iter().any(|line| line.starts_with("authorization:"));
    assert_eq!(world.hub.with(|state| state.seen.iter().map(sent).collect::<Vec<_>>()), [true, true, false]);
    world.hub.with(|state| state.list = Some(List::Status(404)));
    world.refuses("tiny/model: there is none on http://127.0.0.1:");
}

#[test]
fn stopping_keeps_what_has_come() {
    let world = World::new();
    world.hub.with(|state| state.cuts = [500_000].into());
    world.hub.stall.store(true, Ordering::Relaxed);
    let came = || fs::metadata(world.part()).is_ok_and(|about| about.len() == 500_000);
    assert_eq!(world.stopped_when(came).to_string(), "stopped: the next call goes on from there");
    assert!(came());
    world.hub.stall.store(false, Ordering::Relaxed);
    world.finds();
    assert_eq!(world.hub.downloads(), [0, 500_000]);
    assert!(!world.part().exists());
}

#[test]
fn stopping_does_not_wait_for_a_list() {
    let world = World::new();
    world.hub.with(|state| state.list = Some(List::Silent));
    world.hub.stall.store(true, Ordering::Relaxed);
    let asked = || world.hub.with(|state| !state.seen.is_empty());
    assert_eq!(world.stopped_when(asked).to_string(), "stopped");
    world.hub.stall.store(false, Ordering::Relaxed);
}

#[test]
fn a_hub_that_says_nothing_is_named_after_a_second() {
    let world = World::new();
    world.hub.with(|state| state.list = Some(List::Silent));
    world.hub.stall.store(true, Ordering::Relaxed);
    let (_, heard) = thread::scope(|scope| {
        let asked = scope.spawn(|| world.ask("hf:tiny/model"));
        thread::sleep(Duration::from_millis(1500));
        world.hub.stall.store(false, Ordering::Relaxed);
        asked.join().unwrap()
    });
    assert_eq!(heard.lines[0], format!("asking {}", world.hub.url));
}

#[test]
fn two_that_ask_at_once_download_once() {
    let world = World::new();
    world.hub.with(|state| state.cuts = [500_000].into());
    world.hub.stall.store(true, Ordering::Relaxed);
    thread::scope(|scope| {
        let both = [(); 2].map(|()| scope.spawn(|| world.finds()));
        let lists =
            || world.hub.with(|state| state.seen.iter().filter(|lines| lines[0].contains("/api/")).count());
        wait_until(|| lists() == 2 && !world.hub.downloads().is_empty());
        // A process can be stopped while it waits for the other.
        let error = world.stopped_when(|| lists() == 3);
        assert_eq!(error.to_string(), "stopped");
        world.hub.stall.store(false, Ordering::Relaxed);
        let lines: Vec<String> = both.into_iter().flat_map(|thread| thread.join().unwrap().lines).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines.contains(&format!("another process downloads {NAME}: waiting for it")), "{lines:?}");
    });
    assert_eq!(world.hub.downloads(), [0, 500_000]);
}

#[test]
fn the_part_that_sees_comes_with_the_model_where_it_is_asked_for() {
    let world = World::new();
    let files = [("mmproj-F32.gguf", &b"larger"[..]), ("mmproj-F16.gguf", b"part"), (NAME, &world.data)];
    let hub = Server::start(&files);
    let settings = Settings { endpoint: hub.url.clone(), ..world.settings.clone() };
    let snapshot = world.model().join("snapshots").join(COMMIT);
    let go_on = AtomicBool::new(false);
    assert_eq!(resolve("hf:tiny/model", &settings, &mut (), &go_on).unwrap(), snapshot.join(NAME));
    assert_eq!(names(&snapshot), [NAME]);
    for offline in [false, true] {
        let settings = Settings { offline, ..settings.clone() };
        let found = resolve_seeing("hf:tiny/model", &settings, &mut (), &go_on).unwrap();
        assert_eq!((found.path, found.unclear), (snapshot.join(NAME), None));
        assert_eq!(found.pictures.as_deref(), Some(&*snapshot.join("mmproj-F16.gguf")));
        assert_eq!(fs::read(found.pictures.unwrap()).unwrap(), b"part");
    }
    let beside = resolve_seeing(snapshot.join(NAME).to_str().unwrap(), &settings, &mut (), &go_on).unwrap();
    assert_eq!(beside.pictures, Some(snapshot.join("mmproj-F16.gguf")));
}
