//! Refused memory: each process refuses one allocation of a life (create, submit, poll, release, destroy) and
//! must get an error or continue. The exceptions that abort are dependencies' allocations, and small ones:
//! `REMAINS`.
#![cfg(unix)] // forks a process for each allocation

mod refusing;

use ::bn_engine::ffi::chat::bn_chat_message;
use ::bn_engine::ffi::config::bn_engine_config;
use ::bn_engine::ffi::event::{BN_EVENT_COMPLETED, BN_FINISH_FAILED, bn_event};
use ::bn_engine::ffi::exports::{engine::*, event::*, request::*};
use ::bn_engine::ffi::growth::Grown;
use ::bn_engine::ffi::picture::bn_picture;
use ::bn_engine::ffi::request::{
    BN_REQUEST_ECHO_PROMPT, BN_REQUEST_LOGPROBS, BN_TASK_EMBED, bn_request_params,
};
use ::bn_engine::ffi::status::{BN_ERR_OUT_OF_MEMORY, BN_OK, bn_error};
use ::bn_engine::ffi::types::{BN_ANY, bn_engine, bn_request, bn_string};
use refusing::{End, Run};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::mem::{size_of, zeroed};
use std::ops::RangeInclusive;
use std::ptr::null_mut;

/// The library's own allocations of at least this many bytes must be refused with an error. Smaller ones
/// (`Box`, `format!` and the like) abort.
const OURS: usize = 4096;

/// Allocations that may abort: functions by the beginnings of their names, each with the maximum bytes for
/// these models. All others may abort only for small sizes.
const REMAINS: [(&str, usize); 14] = [
    // A fixed size: a thread's closure.
    ("bn_engine::base::threads::start", 8 << 10),
    // Proportional to the length of a chat template, which is bounded.
    ("minijinja::", 8 << 10),
    // Proportional to the length of the pre-tokenizer's patterns, which is bounded.
    ("fancy_regex::", 4 << 10),
    ("regex_automata::", 320_000),
    ("regex_syntax::", 32 << 10),
    ("aho_corasick::", 32 << 10),
    // Proportional to the vocabulary: the package's own tables.
    ("tokenizers::", 72 << 10),
    // Fixed tables, and some lines of a picture, whose sides are bounded.
    ("png::", 32 << 10),
    ("fdeflate::", 16 << 10),
    ("weezl::", 16 << 10),
    ("image_webp::", 16 << 10),
    ("zune_jpeg::", 32 << 10),
    ("gif::", 32 << 10),
    ("u8 as alloc::vec::spec_from_elem::SpecFromElem>::from_elem < image_webp::", 32 << 10),
];
/// Timeout of every wait in a test.
const WAIT_MS: u32 = 10_000;

struct Life {
    engine: *mut bn_engine,
    error: bn_error,
    /// The first error, as text.
    refused: Option<String>,
}

impl Life {
    fn new() -> Self {
        let error = bn_error { status: 0, message: [0; 508] };
        Self { engine: null_mut(), error, refused: None }
    }

    /// Returns true for success; otherwise keeps the error.
    fn ok(&mut self, status: i32) -> bool {
        if status != BN_OK {
            // SAFETY: every call terminates its message.
            let message = unsafe { std::ffi::CStr::from_ptr(self.error.message.as_ptr()) };
            let message = format!("{status}: {}", message.to_string_lossy());
            self.refused.get_or_insert(message);
        }
        status == BN_OK
    }

    unsafe fn create(&mut self, model: &Model) -> bool {
        unsafe {
            let mut config: bn_engine_config = zeroed();
            bn_engine_config_init(&mut config, size_of::<bn_engine_config>() as u32);
            config.threads = 2;
            config.context_length = model.max_sequence;
            (config.max_batch_size, config.max_batch_tokens) = (256, 4096);
            config.model_path = model.path.as_deref().map_or(bn_string::NONE, bn_string::of);
            let status = bn_engine_create(&config, &mut self.engine, &mut self.error);
            self.ok(status)
        }
    }

    unsafe fn submit(&mut self, change: impl FnOnce(&mut bn_request_params)) -> Option<bn_request> {
        unsafe {
            let mut params: bn_request_params = zeroed();
            bn_request_params_init(&mut params, size_of::<bn_request_params>() as u32);
            params.max_new_tokens = 6;
            change(&mut params);
            let mut id = 0;
            let status = bn_submit(self.engine, &params, &mut id, &mut self.error);
            self.ok(status).then_some(id)
        }
    }

    /// Polls until `n` requests have ended.
    unsafe fn poll(&mut self, mut n: usize) {
        while n > 0 {
            let mut events: [bn_event; 4] = std::array::from_fn(|_| bn_event::defaults());
            let mut count = 0;
            let (size, room) = (size_of::<bn_event>(), events.len());
            unsafe {
                let status = bn_poll(
                    self.engine,
                    BN_ANY,
                    events.as_mut_ptr(),
                    size,
                    room,
                    WAIT_MS,
                    &mut count,
                    &mut self.error,
                );
                if !self.ok(status) && status != BN_ERR_OUT_OF_MEMORY {
                    return;
                }
                for event in &events[..count] {
                    if event.finish_reason == BN_FINISH_FAILED {
                        let text =
                            std::slice::from_raw_parts(event.message.data.cast(), event.message.length);
                        let text = format!("{} {}", event.status, String::from_utf8_lossy(text));
                        self.refused.get_or_insert(text);
                    }
                    n -= usize::from(event.kind == BN_EVENT_COMPLETED);
                }
                bn_events_free(events.as_ptr(), size, count);
            }
        }
    }
}

/// Acts as a host, and returns the first error.
///
/// # Safety
///
/// Nothing else uses the library meanwhile.
unsafe fn live(model: &Model) -> Option<String> {
    let mut life = Life::new();
    let stop = bn_string::of(&model.stop);
    let message = bn_chat_message { role: bn_string::of("user"), content: bn_string::of(&model.text) };
    let tokens = [1u32, 2, 3];
    let ids = &mut *model.ids.borrow_mut();
    // SAFETY: the pointers are to objects that live here; the calls are those of the header.
    unsafe {
        if !life.create(model) {
            return life.refused;
        }
        ids.extend(life.submit(|p| {
            (p.prompt_tokens, p.prompt_tokens_count) = (tokens.as_ptr(), 3);
            (p.flags, p.top_logprobs) = (BN_REQUEST_LOGPROBS | BN_REQUEST_ECHO_PROMPT, 3);
        }));
        if !model.text.is_empty() {
            ids.extend(life.submit(|p| {
                p.prompt = bn_string::of(&model.text);
                (p.stop_strings, p.stop_strings_count) = (&stop, 1);
            }));
        }
        if model.chat {
            ids.extend(life.submit(|p| (p.chat.messages, p.chat.messages_count) = (&message, 1)));
        }
        if model.embeds {
            ids.extend(life.submit(|p| (p.prompt, p.task) = (bn_string::of("Once"), BN_TASK_EMBED)));
        }
        let all = [model.pictures.as_slice(), &[PIXELS]].concat();
        for picture in all.iter().filter(|_| model.sees) {
            ids.extend(life.submit(|p| {
                (p.prompt_tokens, p.prompt_tokens_count) = (SEEING.as_ptr(), SEEING.len());
                (p.pictures, p.pictures_count) = (picture, 1);
            }));
        }
        for _ in 0..model.more {
            ids.extend(life.submit(|p| (p.prompt_tokens, p.prompt_tokens_count) = (tokens.as_ptr(), 3)));
        }
        life.poll(ids.len());
        for &id in ids.iter() {
            let status = bn_request_free(life.engine, id, &mut life.error);
            life.ok(status);
        }
        // The engine still answers, whatever was refused.
        refusing::disarm();
        let refused = life.refused.take();
        let last = life.submit(|p| (p.prompt_tokens, p.prompt_tokens_count) = (tokens.as_ptr(), 3));
        life.poll(last.is_some().into());
        assert_eq!(life.refused, None, "after {refused:?}");
        assert_eq!(bn_engine_free(life.engine), BN_OK);
        refused
    }
}

/// The model and the questions; made before anything is refused.
struct Model {
    path: Option<String>,
    max_sequence: u32,
    /// Prompts; empty if there is no tokenizer.
    text: String,
    stop: String,
    chat: bool,
    embeds: bool,
    /// It sees pictures, and these files.
    sees: bool,
    pictures: Vec<bn_picture>,
    /// Further requests.
    more: usize,
    ids: RefCell<Vec<bn_request>>,
}

fn model(path: Option<&str>) -> Model {
    Model {
        path: path.map(|path| path.replace("golden", concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"))),
        max_sequence: 128,
        text: String::new(),
        stop: "zzy".repeat(2000),
        chat: false,
        embeds: false,
        sees: false,
        pictures: Vec::new(),
        more: 0,
        ids: Vec::with_capacity(1024).into(),
    }
}

/// A prompt of the seeing model with one picture.
const SEEING: [u32; 4] = [5, 58, 60, 59];

const PIXELS: bn_picture = encoded(&[128; 3 * 64 * 48], [64, 48]);

const fn encoded(bytes: &'static [u8], [width, height]: [u32; 2]) -> bn_picture {
    bn_picture { data: bytes.as_ptr(), data_len: bytes.len(), width, height, reserved: [0; 2] }
}

fn seeing() -> Model {
    let read = |name: &str| {
        let path = format!("{}/tests/golden/pictures/files/{name}", env!("CARGO_MANIFEST_DIR"));
        encoded(std::fs::read(path).expect("a picture").leak(), [0, 0])
    };
    let mut large = Vec::new();
    let mut png = png::Encoder::new(&mut large, 64, 64);
    png.set_color(png::ColorType::Rgb);
    let pixels = [90; 3 * 64 * 64];
    png.write_header().and_then(|mut png| png.write_image_data(&pixels)).expect("a picture");
    let mut pictures: Vec<_> =
        ["rgb.png", "rgb.jpg", "lossless.webp", "plain.gif"].into_iter().map(read).collect();
    pictures.push(encoded(large.leak(), [0, 0]));
    Model { sees: true, pictures, ..model(Some("golden/towers/qwen35")) }
}

fn models() -> [Model; 5] {
    let text = |times| "Once upon a time ".repeat(times);
    let echo =
        Model { max_sequence: 9000, text: text(500), chat: true, more: 300, ..model(Some("builtin:echo")) };
    let demo = Model { max_sequence: 512, text: text(20), embeds: true, ..model(None) };
    [echo, model(Some("golden/models/llama-f32")), model(Some("golden/llama-tiny-f32.gguf")), demo, seeing()]
}

/// Sizes of allocations, and the step from one refused allocation to the next: every large one, and some of
/// the small ones.
const SWEEPS: [(RangeInclusive<usize>, usize); 3] =
    [(OURS..=usize::MAX, 1), (512..=OURS - 1, 3), (0..=511, 61)];

/// Describes the fault of a run with a refused allocation, if there was one.
fn wrong(run: &Run) -> Option<String> {
    let Run { end, size, trace } = run;
    match end {
        End::Survived => None,
        End::Error(text)
            if text.contains(&BN_ERR_OUT_OF_MEMORY.to_string()) && text.contains("could not") =>
        {
            None
        }
        End::Aborted if trace.is_empty() => Some(format!("{size} bytes: aborted, and nobody knows where")),
        End::Aborted if remains(trace, *size) => None,
        other => Some(format!("{size} bytes: {other:?}, asked for by {trace}")),
    }
}

/// Returns true if an allocation of `size` bytes may abort, judged by the functions that asked for it,
/// innermost first.
fn remains(trace: &str, size: usize) -> bool {
    let first = trace.trim_start_matches('<');
    match REMAINS.iter().find(|(prefix, _)| first.starts_with(prefix)) {
        Some((_, bytes)) => size <= *bytes,
        None => size < OURS,
    }
}

#[test]
fn a_refused_allocation_is_an_error() {
    let mut failures = BTreeSet::new();
    for model in models() {
        for (sizes, step) in SWEEPS {
            for n in (0..).step_by(step) {
                // SAFETY: a process of its own, with only this thread.
                let run = refusing::run(sizes.clone(), n, || unsafe { live(&model) });
                failures.extend(wrong(&run).map(|what| format!("{:?}: {what}", model.path)));
                if run.size == 0 {
                    assert_eq!(
                        run.end,
                        End::Survived,
                        "{:?}: nothing was refused, {}",
                        model.path,
                        run.trace
                    );
                    assert!(n > 10 * step || step > 1, "{:?}: hardly anything was allocated", model.path);
                    break;
                }
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
}
