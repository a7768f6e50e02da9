//! Requests in the library's form.
use crate::chat::RawChat;
use crate::decision::Questions;
use crate::logits::on_logits;
use crate::picture::Picture;
use crate::request::{Prompt, Request, Task};
use crate::sampling::SamplingArrays;
use crate::shared::Shared;
use crate::{sys, text};
use std::mem::{MaybeUninit, size_of};
use std::ptr;

/// The library's defaults.
pub(crate) fn defaults() -> sys::bn_request_params {
    let mut params = MaybeUninit::<sys::bn_request_params>::zeroed();
    // SAFETY: the library fills a struct of this size, and one of zeros is a valid one.
    unsafe {
        sys::bn_request_params_init(params.as_mut_ptr(), size_of::<sys::bn_request_params>() as u32);
        params.assume_init()
    }
}

/// A request's parameters with the arrays that they point to.
pub(crate) struct Params<'a> {
    request: &'a Request,
    /// The task, instead of the request's own.
    pub task: Task,
    pub no_stream: bool,
    chat: Option<RawChat<'a>>,
    stop_strings: Vec<sys::bn_string>,
    sampling: SamplingArrays,
    /// With the arrays that they point to.
    questions: (Questions, Vec<sys::bn_question>),
    pictures: Vec<sys::bn_picture>,
}

impl<'a> Params<'a> {
    pub fn new(request: &'a Request) -> Self {
        let chat = match &request.prompt {
            Prompt::Chat(chat) => Some(RawChat::new(chat)),
            _ => None,
        };
        let questions = Questions::new(&request.questions);
        let raw = questions.raw(&request.questions);
        Self {
            request,
            task: request.task,
            no_stream: request.no_stream,
            chat,
            stop_strings: text::views(&request.stop_strings),
            sampling: SamplingArrays::new(&request.sampling),
            questions: (questions, raw),
            pictures: request.pictures.iter().map(Picture::raw).collect(),
        }
    }

    /// Valid while this is. `shared` gets the request's callbacks.
    pub fn get(&self, shared: *const Shared) -> sys::bn_request_params {
        let request = self.request;
        let mut params = defaults();
        params.flags = flags(request, self.no_stream);
        params.priority = request.priority;
        params.user_data = shared.expose_provenance() as u64;
        self.write_prompt(&mut params);
        self.write_task(&mut params);
        self.write_ends(&mut params);
        params.adapter_scale = request.adapter_scale;
        params.adapter = request.adapter.as_ref().map_or(ptr::null(), |adapter| adapter.raw());
        request.sampling.write(&self.sampling, &mut params.sampling);
        if request.on_logits.is_some() {
            params.sampling.on_logits = Some(on_logits);
            params.sampling.on_logits_context = shared.cast_mut().cast();
        }
        if let Some(constraint) = &request.constraint {
            params.constraint = constraint.raw();
        }
        params.top_logprobs = request.top_logprobs;
        params.logprob_tokens = text::array(&request.logprob_tokens);
        params.logprob_tokens_count = request.logprob_tokens.len();
        params.speculation = request.speculation as u32;
        params.draft_tokens = request.draft_tokens;
        params.cache_salt = request.cache_salt;
        params.session = text::optional(request.session.as_deref());
        if let Some(trace) = &request.trace {
            params.trace = sys::bn_trace { trace_id: trace.trace_id, parent_id: trace.parent_id };
        }
        params
    }

    fn write_prompt(&self, params: &mut sys::bn_request_params) {
        match &self.request.prompt {
            Prompt::Text(prompt) => params.prompt = text::view(prompt),
            Prompt::Tokens(tokens) => {
                // The field is set, even if it is empty.
                (params.prompt_tokens, params.prompt_tokens_count) = (tokens.as_ptr(), tokens.len());
            }
            Prompt::Chat(_) => {}
            Prompt::Pair { query, document } => {
                (params.prompt, params.document) = (text::view(query), text::view(document));
            }
        }
        if let Some(chat) = &self.chat {
            params.chat = chat.get();
        }
        (params.pictures, params.pictures_count) = (text::array(&self.pictures), self.pictures.len());
    }

    fn write_task(&self, params: &mut sys::bn_request_params) {
        params.logprobs_from = self.request.logprobs_from;
        params.task = match self.task {
            Task::Generate => sys::BN_TASK_GENERATE,
            Task::Embed(embedding) => {
                params.embedding.pooling = embedding.pooling as u32;
                params.embedding.normalization = embedding.normalization as u32;
                sys::BN_TASK_EMBED
            }
            Task::Score { from } => {
                params.logprobs_from = from;
                sys::BN_TASK_SCORE
            }
            Task::Rerank => sys::BN_TASK_RERANK,
            Task::Decide => sys::BN_TASK_DECIDE,
        };
        let (_, questions) = &self.questions;
        (params.questions, params.questions_count) = (text::array(questions), questions.len());
    }

    fn write_ends(&self, params: &mut sys::bn_request_params) {
        let request = self.request;
        (params.stop_tokens, params.stop_tokens_count) =
            (text::array(&request.stop_tokens), request.stop_tokens.len());
        (params.stop_strings, params.stop_strings_count) =
            (text::array(&self.stop_strings), self.stop_strings.len());
        params.max_new_tokens = request.max_new_tokens;
        params.min_new_tokens = request.min_new_tokens;
        params.max_reasoning_tokens = request.max_reasoning_tokens.unwrap_or(sys::BN_NO_LIMIT);
        params.timeout_ms = request.timeout_ms;
        params.queue_timeout_ms = request.queue_timeout_ms;
    }
}

fn flags(request: &Request, no_stream: bool) -> u32 {
    let flags = [
        (no_stream, sys::BN_REQUEST_NO_STREAM),
        (request.echo_prompt, sys::BN_REQUEST_ECHO_PROMPT),
        (request.ignore_eos, sys::BN_REQUEST_IGNORE_EOS),
        (request.logprobs, sys::BN_REQUEST_LOGPROBS),
        (request.parse_special, sys::BN_REQUEST_PARSE_SPECIAL),
        (request.no_cache, sys::BN_REQUEST_NO_CACHE),
        (request.drop_late, sys::BN_REQUEST_DROP_LATE),
        (request.end_unread, sys::BN_REQUEST_END_UNREAD),
        (request.chain_logprobs, sys::BN_REQUEST_CHAIN_LOGPROBS),
        (request.parse_output, sys::BN_REQUEST_PARSE_OUTPUT),
        (request.prompt_logprobs, sys::BN_REQUEST_PROMPT_LOGPROBS),
    ];
    flags.into_iter().filter(|(on, _)| *on).fold(0, |all, (_, flag)| all | flag)
}
