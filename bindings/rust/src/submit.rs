//! Submitting requests, and waiting for them.
use crate::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Answer;
use crate::finish::FinishReason;
use crate::params::Params;
use crate::request::{EmbeddingParams, Request, Task};
use crate::shared::Shared;
use crate::stream::Stream;
use crate::sys;
use std::sync::Arc;

impl Engine {
    /// Submits a request and returns its stream. It does not wait for the model, but a constraint that is not compiled
    /// yet may take seconds: in an event loop, call it on a thread for blocking work.
    pub fn submit(&self, request: &Request) -> Result<Stream> {
        self.submit_params(request, &Params::new(request))
    }

    fn submit_params(&self, request: &Request, params: &Params<'_>) -> Result<Stream> {
        let shared = Shared::new(self.0.handle(), request);
        let given = Arc::into_raw(shared.clone());
        let raw = params.get(given);
        let mut id = 0;
        // SAFETY: what the parameters point to lives until the call returns, and `given` until the last event.
        let result = self.0.call(|engine, error| unsafe { sys::bn_submit(engine, &raw, &mut id, error) });
        if let Err(error) = result {
            // SAFETY: the library has not taken it, so that no event comes.
            drop(unsafe { Arc::from_raw(given) });
            return Err(error);
        }
        Ok(Stream::new(shared, self.clone(), id))
    }

    /// Submits requests, all or none. An error names the request by its index. As [`Engine::submit`], it may compile.
    pub fn submit_batch(&self, requests: &[Request]) -> Result<Vec<Stream>> {
        let params: Vec<_> = requests.iter().map(Params::new).collect();
        let shared: Vec<_> = requests.iter().map(|request| Shared::new(self.0.handle(), request)).collect();
        let given: Vec<_> = shared.iter().map(|shared| Arc::into_raw(shared.clone())).collect();
        let raw: Vec<_> = params.iter().zip(&given).map(|(params, given)| params.get(*given)).collect();
        let pointers: Vec<*const sys::bn_request_params> = raw.iter().map(std::ptr::from_ref).collect();
        let mut ids = vec![0; requests.len()];
        let result = self.0.call(|engine, error| {
            // SAFETY: as in `submit_params`, for each of them; there is room for their ids.
            unsafe {
                sys::bn_submit_batch(engine, pointers.as_ptr(), pointers.len(), ids.as_mut_ptr(), error)
            }
        });
        if let Err(error) = result {
            for given in given {
                // SAFETY: the library has taken none.
                drop(unsafe { Arc::from_raw(given) });
            }
            return Err(error);
        }
        Ok(shared.into_iter().zip(ids).map(|(shared, id)| Stream::new(shared, self.clone(), id)).collect())
    }

    /// Submits a request and waits for the whole answer. A request that was cancelled or timed out returns the output
    /// so far; one that failed is an error. Tasks use `engine.submit(&request)?.finish().await`.
    pub fn generate(&self, request: &Request) -> Result<Answer> {
        let mut params = Params::new(request);
        params.no_stream = true;
        let answer = self.submit_params(request, &params)?.answer();
        match answer.finish.error {
            Some(error) if answer.finish.reason == FinishReason::Failed => Err(error),
            _ => Ok(answer),
        }
    }

    /// Waits for the embedding of a prompt. The request's task is [`Task::Embed`], even if it is not set.
    pub fn embed(&self, request: &Request) -> Result<Vec<f32>> {
        let mut params = Params::new(request);
        if !matches!(request.task, Task::Embed(_)) {
            params.task = Task::Embed(EmbeddingParams::default());
        }
        vector(self.submit_params(request, &params)?)
    }

    /// Waits for the relevance of documents to a query, each from 0 to 1, for models whose
    /// [`ModelInfo::scores_pairs`](crate::ModelInfo::scores_pairs) is true. All are submitted at once.
    pub fn rerank(&self, query: &str, documents: &[&str]) -> Result<Vec<f32>> {
        let requests: Vec<_> = documents.iter().map(|document| Request::rerank(query, *document)).collect();
        if requests.is_empty() {
            return Ok(Vec::new());
        }
        self.submit_batch(&requests)?.into_iter().map(|stream| Ok(vector(stream)?[0])).collect()
    }
}

fn vector(stream: Stream) -> Result<Vec<f32>> {
    let finish = stream.answer().finish;
    match finish.embedding {
        Some(vector) => Ok(vector),
        None => Err(finish.error.unwrap_or_else(|| Error::of(ErrorKind::Internal))),
    }
}
