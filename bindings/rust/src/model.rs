//! Models: weights, tokenizers and chat templates.
use crate::chat::{Chat, RawChat};
use crate::error::{Error, ErrorKind, Result, check};
use crate::handle::Handle;
use crate::model_info::ModelInfo;
use crate::model_options::ModelOptions;
use crate::{sys, text};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// A loaded model, for any number of engines. Clones are the same model, which is freed with the last of them and of the
/// engines that were made of it.
#[derive(Clone)]
pub struct Model(Arc<Inner>);

struct Inner {
    handle: Handle<sys::bn_model>,
    info: ModelInfo,
    /// The bytes of the model, which are used in place.
    _bytes: Option<Arc<[u8]>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: the handle is this one's own. The bytes go after it.
        unsafe { sys::bn_model_free(self.handle.raw()) };
    }
}

/// The options of tokenizing a text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tokenize {
    /// Add the tokens that submitting the text adds: BOS, and an encoder's end token.
    pub add_special: bool,
    /// Control tokens spelled out in the text become those tokens.
    pub parse_special: bool,
}

impl Model {
    /// Loads a GGUF file, a Hugging Face folder, or `builtin:echo`.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        Self::open_with(ModelOptions { path: Some(path.into()), ..ModelOptions::default() })
    }

    /// The small model that is embedded in the library.
    pub fn builtin() -> Result<Self> {
        Self::open_with(ModelOptions::default())
    }

    /// Loads a model.
    pub fn open_with(mut options: ModelOptions) -> Result<Self> {
        check_abi()?;
        let raw = options.open()?;
        Self::new(Handle::new(raw), options.bytes)
    }

    /// Wraps a handle that the library made.
    pub(crate) fn new(handle: Handle<sys::bn_model>, bytes: Option<Arc<[u8]>>) -> Result<Self> {
        let mut inner = Inner { handle, info: ModelInfo::default(), _bytes: bytes };
        inner.info = ModelInfo::of(handle)?;
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn raw(&self) -> *mut sys::bn_model {
        self.0.handle.raw()
    }

    /// Facts about the model.
    pub fn info(&self) -> &ModelInfo {
        &self.0.info
    }

    /// The token ids of a text.
    pub fn tokenize(&self, prompt: &str, how: Tokenize) -> Result<Vec<u32>> {
        let special = if how.add_special { sys::BN_TOKENIZE_ADD_SPECIAL } else { 0 };
        let parse = if how.parse_special { sys::BN_TOKENIZE_PARSE_SPECIAL } else { 0 };
        // SAFETY: the text lives, and the buffer has the room that is said.
        text::sized(prompt.len() / 3 + 16, |tokens, capacity, count| unsafe {
            check(|error| {
                let prompt = text::view(prompt);
                sys::bn_model_tokenize(self.raw(), prompt, special | parse, tokens, capacity, count, error)
            })
        })
    }

    /// The text of tokens. Bytes that are not UTF-8 become U+FFFD, and control tokens have no text.
    pub fn detokenize(&self, tokens: &[u32]) -> Result<String> {
        let (data, number) = (text::array(tokens), tokens.len());
        // SAFETY: as above.
        text::sized_text(tokens.len() * 4 + 16, |text, capacity, length| unsafe {
            check(|error| sys::bn_model_detokenize(self.raw(), data, number, text, capacity, length, error))
        })
    }

    /// The exact bytes of a token, which may be a part of a character. A control token gives its name.
    pub fn token_bytes(&self, token: u32) -> Result<Vec<u8>> {
        // SAFETY: as above.
        text::sized::<u8>(32, |bytes, capacity, length| unsafe {
            check(|error| sys::bn_model_token_bytes(self.raw(), token, bytes.cast(), capacity, length, error))
        })
    }

    /// A conversation as the model's template formats it, for display. Do not submit it: control tokens that a user
    /// typed would take effect.
    pub fn chat_format(&self, chat: &Chat) -> Result<String> {
        let raw = RawChat::new(chat);
        // SAFETY: as above, for the conversation.
        text::sized_text(4096, |text, capacity, length| unsafe {
            check(|error| sys::bn_model_chat_format(self.raw(), &raw.get(), text, capacity, length, error))
        })
    }

    /// The token ids of a conversation: the prompt that a request with it has.
    pub fn chat_tokenize(&self, chat: &Chat) -> Result<Vec<u32>> {
        let raw = RawChat::new(chat);
        // SAFETY: as above.
        text::sized(1024, |tokens, capacity, count| unsafe {
            check(|error| sys::bn_model_chat_tokenize(self.raw(), &raw.get(), tokens, capacity, count, error))
        })
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let info = self.info();
        f.debug_struct("Model")
            .field("architecture", &info.architecture)
            .field("name", &info.name)
            .finish_non_exhaustive()
    }
}

/// Refuses a library that this package was not compiled for.
pub(crate) fn check_abi() -> Result<()> {
    // SAFETY: it takes nothing.
    let linked = unsafe { sys::bn_abi_version() };
    if linked == sys::BN_ABI_VERSION {
        return Ok(());
    }
    let message =
        format!("the library has ABI {linked}, and this package was made for {}", sys::BN_ABI_VERSION);
    Err(Error::new(ErrorKind::Unsupported, message))
}
