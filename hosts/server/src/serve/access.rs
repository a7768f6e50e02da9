//! A line of the log for each answer.
use axum::http::{Method, request::Parts};
use bn_hub::printable;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// The name of the model that answers, once it is known, as an extension of a request.
#[derive(Clone, Debug, Default)]
pub struct Answering(pub Arc<OnceLock<String>>);

pub struct Record {
    peer: IpAddr,
    method: Method,
    path: String,
    began: Instant,
    pub status: u16,
    pub bytes: u64,
    model: Answering,
}

impl Record {
    pub fn begin(peer: IpAddr, parts: &mut Parts) -> Self {
        let model = Answering::default();
        parts.extensions.insert(model.clone());
        Self {
            peer,
            method: parts.method.clone(),
            path: parts.uri.path().to_owned(),
            began: Instant::now(),
            status: 0,
            bytes: 0,
            model,
        }
    }
}

impl Drop for Record {
    fn drop(&mut self) {
        tracing::info!(
            target: "access",
            peer = %self.peer,
            method = %printable(self.method.as_str()),
            path = %printable(&self.path),
            status = self.status,
            bytes = self.bytes,
            ms = self.began.elapsed().as_millis() as u64,
            model = %printable(self.model.0.get().map_or("-", String::as_str)),
        );
    }
}
