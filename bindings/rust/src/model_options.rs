//! Options for opening a model.
use crate::error::{Result, check};
use crate::log::{self, Log, LogLevel};
use crate::{callback, sys, text};
use std::ffi::c_void;
use std::mem::{MaybeUninit, size_of};
use std::ops::ControlFlow;
#[cfg(unix)]
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

/// The type that weights get while a model is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum WeightType {
    /// As the model's files store them.
    #[default]
    Keep = sys::BN_WEIGHTS_KEEP,
    /// 8 bits, in blocks of 32 with a scale.
    Q8_0 = sys::BN_WEIGHTS_Q8_0,
    /// 4 bits, in blocks of 32 with a scale.
    Q4_0 = sys::BN_WEIGHTS_Q4_0,
    /// -1, 0 and 1 with a scale.
    Ternary = sys::BN_WEIGHTS_TERNARY,
    /// 8 bits, with a scale for each row.
    Int8 = sys::BN_WEIGHTS_INT8,
}

/// Receives the progress of loading, from 0 to 1, and what is being loaded, on a thread of the library. `Break` and a
/// panic stop it, as [`ErrorKind::Cancelled`](crate::ErrorKind::Cancelled).
pub type Progress = Box<dyn FnMut(f32, &str) -> ControlFlow<()> + Send>;

/// The options for opening a model by `path`, `bytes` or `fd`, at most one of them. With none, it is the small model
/// embedded in the library.
pub struct ModelOptions {
    /// A GGUF file, a Hugging Face folder, or `builtin:echo`, a model without weights that answers with its prompt.
    pub path: Option<PathBuf>,
    /// The bytes of a GGUF file. They are kept as long as the model.
    pub bytes: Option<Arc<[u8]>>,
    /// A readable descriptor of a GGUF file.
    #[cfg(unix)]
    pub fd: Option<OwnedFd>,
    /// The `kernel_config.ini` of a GGUF file with TL1 or TL2 tensors. None: the one beside the file.
    pub kernel_config_path: Option<PathBuf>,
    /// The most bytes of weights. 0: no limit.
    pub memory_limit_bytes: u64,
    /// Threads that load. 0: the CPUs that this process may use.
    pub threads: u32,
    /// Also load the model's block of multi-token prediction, which drafts tokens.
    pub mtp: bool,
    /// A GGUF file of a drafter alone: a block of multi-token prediction, or an EAGLE-3 head.
    pub drafter_path: Option<PathBuf>,
    /// A GGUF file of the part that sees pictures ("mmproj"), of a model that is a GGUF file.
    pub pictures_path: Option<PathBuf>,
    /// Keep a copy of weights with which a model with ReLU² skips those that are multiplied by zeros (BitNet
    /// b1.58 2B-4T).
    pub skip_zeros: bool,
    /// For attention and feed-forwards.
    pub weights: WeightType,
    /// For the embedding.
    pub embedding: WeightType,
    /// For the output head.
    pub head: WeightType,
    /// The most detailed level that `log` gets.
    pub log_level: LogLevel,
    /// Receives the log of loading.
    pub log: Option<Log>,
    /// Receives the progress of loading, and may stop it.
    pub progress: Option<Progress>,
}

fn defaults() -> sys::bn_model_config {
    let mut config = MaybeUninit::<sys::bn_model_config>::zeroed();
    // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
    unsafe {
        sys::bn_model_config_init(config.as_mut_ptr(), size_of::<sys::bn_model_config>() as u32);
        config.assume_init()
    }
}

impl Default for ModelOptions {
    /// The embedded model, and the library's defaults.
    fn default() -> Self {
        let raw = defaults();
        Self {
            path: None,
            bytes: None,
            #[cfg(unix)]
            fd: None,
            kernel_config_path: None,
            memory_limit_bytes: raw.memory_limit_bytes,
            threads: raw.threads,
            mtp: false,
            drafter_path: None,
            pictures_path: None,
            skip_zeros: false,
            weights: WeightType::Keep,
            embedding: WeightType::Keep,
            head: WeightType::Keep,
            log_level: LogLevel::of(raw.log_level),
            log: None,
            progress: None,
        }
    }
}

impl ModelOptions {
    /// Loads the model. Its bytes must outlive the handle.
    pub(crate) fn open(&mut self) -> Result<*mut sys::bn_model> {
        text::check_path(self.path.as_deref())?;
        text::check_path(self.kernel_config_path.as_deref())?;
        text::check_path(self.drafter_path.as_deref())?;
        text::check_path(self.pictures_path.as_deref())?;
        let progress = self.progress.take().map(Mutex::new);
        let mut config = defaults();
        #[cfg(unix)]
        if let Some(fd) = &self.fd {
            config.fd = fd.as_raw_fd();
        }
        config.path = text::path(self.path.as_deref());
        if let Some(bytes) = &self.bytes {
            (config.data, config.data_size) = (bytes.as_ptr().cast(), bytes.len());
        }
        config.kernel_config_path = text::path(self.kernel_config_path.as_deref());
        config.drafter_path = text::path(self.drafter_path.as_deref());
        config.pictures_path = text::path(self.pictures_path.as_deref());
        config.memory_limit_bytes = self.memory_limit_bytes;
        config.threads = self.threads;
        config.flags |= if self.mtp { sys::BN_MODEL_MTP } else { 0 };
        config.flags |= if self.skip_zeros { sys::BN_MODEL_SKIP_ZEROS } else { 0 };
        config.weight_type = self.weights as u32;
        config.embedding_type = self.embedding as u32;
        config.head_type = self.head as u32;
        config.log_level = self.log_level as u32;
        (config.log, config.log_context) = log::hook(self.log.as_ref());
        if let Some(progress) = &progress {
            config.progress = Some(on_progress);
            config.progress_context = ptr::from_ref(progress).cast_mut().cast();
        }
        let mut model = ptr::null_mut();
        // SAFETY: all that the configuration points to lives until the call returns, and the bytes as long as the model.
        check(|error| unsafe { sys::bn_model_open(&config, &mut model, error) })?;
        Ok(model)
    }
}

unsafe extern "C" fn on_progress(fraction: f32, what: sys::bn_string, context: *mut c_void) -> i32 {
    let flow = callback::run(|| {
        // SAFETY: the context lives until the model is open, and the text is valid during the call.
        let (progress, what) = unsafe { (&*context.cast::<Mutex<Progress>>(), text::text(what)) };
        (progress.lock().unwrap_or_else(PoisonError::into_inner))(fraction, &what)
    });
    i32::from(flow != Some(ControlFlow::Continue(())))
}
