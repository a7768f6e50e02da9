//! How an engine sees pictures, and those of its living requests by their hashes.

use super::decoders::Decoders;
use super::pictures::Picture;
use crate::base::sync::Mutex;
use crate::cache::Digest;
use crate::engine::api::{self, EngineConfig};
use crate::model::{Loaded, Sight};
use crate::ops::OpSet;
use crate::picture::Processor;
use sha2::{Digest as _, Sha256};
use siphasher::sip::SipHasher24;
use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Weak};
use xxhash_rust::xxh64::xxh64;

/// What an engine sees with.
pub(crate) struct Eyes {
    pub sight: Arc<Sight>,
    /// That of the model, for pictures as large as the engine takes them.
    pub processor: Processor,
    /// The most vectors of a picture, and patches.
    pub most_tokens: u64,
    pub most_patches: usize,
    /// The most vectors of a part of a picture, if they run in one step beside a row of each other sequence.
    pub step_tokens: Option<u32>,
    pub known: KnownPictures,
}

impl Eyes {
    /// `None`: pictures are refused.
    pub(crate) fn new(config: &EngineConfig, loaded: &Loaded) -> Option<Self> {
        let sight = loaded.sight.as_ref().filter(|_| config.picture_tokens > 0 && config.on_cpu())?;
        let processor = bounded(config, sight);
        let key = config.cache_path.as_deref().and_then(|folder| kept_key(Path::new(folder)));
        let maker = xxh64(format!("{processor:?}").as_bytes(), sight.tower.fingerprint());
        let known = KnownPictures::new(key.unwrap_or_else(random_key), maker);
        let (most_tokens, most_patches) = (config.picture_tokens, most_patches(config, &processor));
        let step_tokens = step_tokens(config, sight);
        Some(Self { sight: sight.clone(), processor, most_tokens, most_patches, step_tokens, known })
    }
}

/// See `Eyes::step_tokens`.
fn step_tokens(config: &EngineConfig, sight: &Sight) -> Option<u32> {
    sight.mutual.then(|| config.max_batch_tokens.saturating_sub(config.max_batch_size - 1))
}

/// The model's processor, for pictures as large as the engine takes them.
fn bounded(config: &EngineConfig, sight: &Sight) -> Processor {
    let step = step_tokens(config, sight).unwrap_or(u32::MAX);
    sight.tower.processor().clone().bounded(step.min(config.picture_tokens as u32))
}

/// The most patches of a picture that the engine takes.
fn most_patches(config: &EngineConfig, processor: &Processor) -> usize {
    let group = (processor.merge as usize).pow(2);
    processor.most_patches().min((config.picture_tokens as usize).saturating_mul(group))
}

/// Upper bound of scratch bytes for a picture, on the CPU, and for the rows of pictures in a step.
pub(crate) fn workspace_bytes(config: &EngineConfig, loaded: &Loaded, ops: &dyn OpSet) -> usize {
    let Some(sight) = loaded.sight.as_ref().filter(|_| config.picture_tokens > 0) else { return 0 };
    let processor = bounded(config, sight);
    let tower = sight.tower.workspace_bytes(ops, most_patches(config, &processor));
    // Vectors and rotations of a batch. Lists grow to at most twice what they need.
    let vector = size_of::<f32>() * loaded.model.facts().hidden_size + size_of::<u32>();
    let rows = 2 * (vector + size_of::<[u32; 3]>()) * config.max_batch_tokens as usize;
    tower.saturating_add(rows)
}

/// The file with the key of hashes, beside prefixes on disk: their contents have these hashes.
const KEY_FILE: &str = "pictures.key";

/// The pictures of living requests, by a hash whose key nobody outside knows: whoever can find two pictures with one
/// hash could have another's answered for his own.
pub(crate) struct KnownPictures {
    key: [u64; 2],
    /// Other vectors come of another tower, or of pictures that are prepared in another way.
    pub maker: u64,
    living: Mutex<HashMap<u64, Weak<Picture>>>,
    pub decoders: Decoders,
}

impl KnownPictures {
    fn new(key: [u64; 2], maker: u64) -> Self {
        Self { key, maker, living: Mutex::default(), decoders: Decoders::default() }
    }

    /// The hash of the picture with this digest.
    pub(crate) fn hash(&self, digest: &Digest) -> u64 {
        let mut hash = SipHasher24::new_with_keys(self.key[0], self.key[1]);
        hash.write_u64(self.maker);
        hash.write(digest);
        hash.finish()
    }

    /// The number of pictures that requests or a tower hold.
    #[cfg(test)]
    pub(crate) fn living(&self) -> usize {
        self.living.lock().values().filter(|picture| picture.strong_count() > 0).count()
    }

    /// The picture of a living request with this hash.
    pub(crate) fn find(&self, hash: u64) -> Option<Arc<Picture>> {
        self.living.lock().get(&hash)?.upgrade()
    }

    /// Adds a picture. Returns it, or the same one that another thread has added meanwhile.
    pub(crate) fn add(&self, hash: u64, picture: Arc<Picture>) -> Arc<Picture> {
        let mut living = self.living.lock();
        if let Some(other) = living.get(&hash).and_then(Weak::upgrade) {
            return other;
        }
        if living.len() == living.capacity() {
            living.retain(|_, picture| picture.strong_count() > 0);
        }
        // Without memory for it, the picture is only not found.
        if living.try_reserve(1).is_ok() {
            living.insert(hash, Arc::downgrade(&picture));
        }
        picture
    }
}

/// The digest of a picture's size, if it is given as pixels, and its bytes: saved sessions name it by that, since other
/// engines have other keys.
pub(crate) fn digest(picture: &api::Picture) -> Digest {
    let (size, bytes) = match picture {
        api::Picture::Encoded(bytes) => ([0, 0], bytes),
        api::Picture::Pixels { width, height, rgb } => ([*width, *height], rgb),
    };
    let hash = size.iter().fold(Sha256::new(), |hash, side| hash.chain_update(side.to_le_bytes()));
    hash.chain_update(bytes).finalize().into()
}

/// Numbers that the system drew for this process.
fn random_key() -> [u64; 2] {
    [0; 2].map(|_: u64| RandomState::new().build_hasher().finish())
}

/// The key of the file in the folder of prefixes on disk, which is made if there is none. Without one, prefixes with
/// pictures are not found by later processes.
fn kept_key(folder: &Path) -> Option<[u64; 2]> {
    let path = folder.join(KEY_FILE);
    let read = || {
        let bytes: [u8; 16] = std::fs::read(&path).ok()?.try_into().ok()?;
        let (halves, _) = bytes.as_chunks::<8>();
        Some([0, 1].map(|half| u64::from_le_bytes(halves[half])))
    };
    read().or_else(|| {
        std::fs::create_dir_all(folder).ok()?;
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        if let Ok(mut file) = options.open(&path) {
            let key = random_key().map(u64::to_le_bytes).concat();
            file.write_all(&key).ok()?;
        }
        // Another process may have made it.
        read()
    })
}
