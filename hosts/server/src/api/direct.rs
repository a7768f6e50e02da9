//! Answers that a model gives at once, without its engine.
use crate::app::App;
use crate::body;
use crate::failure::Result;
use crate::fetch;
use crate::fields::Fields;
use crate::models::Held;
use crate::run::{self, Call};
use crate::work::WorkQueue;
use axum::body::Body;
use axum::http::{Response, request::Parts};
use std::sync::Arc;

/// Writes an answer to a body's fields. It runs on a thread for such work.
pub type Write = fn(&mut Call, &Held, Fields) -> Result<String>;

pub async fn answer(app: Arc<App>, parts: Parts, body: Body, write: Write) -> Response<Body> {
    let call = Call::new(&app, &parts);
    let shape = call.shape;
    answered(call, body, write).await.unwrap_or_else(|failure| failure.response(shape))
}

async fn answered(mut call: Call, body: Body, write: Write) -> Result<Response<Body>> {
    let (mut fields, length) = body::read(&mut call, body).await?;
    let held = run::take_model(&mut call, &fields).await?;
    let app = call.app.clone();
    let fetcher = app.fetcher.as_ref().filter(|_| held.info.sees);
    let length =
        length + fetch::pictures(fetcher, &mut call.lease, app.options.max_body, &mut fields).await?;
    let (app, cost) = (call.app.clone(), call.cost(length));
    let work = move || {
        let written = write(&mut call, &held, fields);
        (call, written)
    };
    let (call, written) = app.work.run(WorkQueue::of(length), cost, work).await;
    Ok(run::json(written?, call))
}
