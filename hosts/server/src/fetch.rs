//! Pictures at URLs: fetched before a request is read, from the hosts of `--fetch-images`.
use crate::failure::{Result, too_large};
use crate::fields::Fields;
use crate::memory::Lease;
use crate::request::picture::{UNFETCHED, url_of};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Semaphore;

/// Files that are fetched at a time, for all clients. Each waits in a thread.
const AT_A_TIME: usize = 16;
/// Bytes of a file.
const MOST: usize = 20 << 20;
/// Time for all files of a request.
const TIME: Duration = Duration::from_secs(60);
/// Copies of a file's bytes at a time: in base64, and decoded.
const COPIES: usize = 3;
/// The fields whose parts have pictures.
const FIELDS: [&str; 2] = ["messages", "input"];

pub struct Fetcher {
    outside: bn_hub::Outside,
    room: Arc<Semaphore>,
}

/// Data URLs by URL. Err: the end of a sentence that says why there is none.
type Fetched = HashMap<String, std::result::Result<String, String>>;

impl Fetcher {
    pub fn new(hosts: bn_hub::Hosts) -> Self {
        Self { outside: bn_hub::Outside::new(hosts), room: Arc::new(Semaphore::new(AT_A_TIME)) }
    }

    async fn fetch(
        &self,
        url: String,
        lease: &mut Lease,
        most: usize,
    ) -> Result<std::result::Result<String, String>> {
        let permit = self.room.clone().acquire_owned().await;
        lease.take(most * COPIES)?;
        let outside = self.outside.clone();
        let run = move || {
            let bytes = outside.fetch(&url, most as u64);
            drop(permit);
            bytes.map(|bytes| (bytes.len(), format!("data:;base64,{}", BASE64_STANDARD.encode(bytes))))
        };
        let fetched = tokio::task::spawn_blocking(run).await.unwrap_or_else(|_| Err("it failed".to_owned()));
        lease.give((most - fetched.as_ref().map_or(0, |(length, _)| *length)) * COPIES);
        Ok(fetched.map(|(_, url)| url))
    }
}

/// Puts pictures in the place of their URLs, and returns the bytes of them all, at most `most`. Without a fetcher, or
/// for a model that sees none, they stay.
pub async fn pictures(
    fetcher: Option<&Fetcher>,
    lease: &mut Lease,
    most: usize,
    fields: &mut Fields,
) -> Result<usize> {
    let Some(fetcher) = fetcher else { return Ok(0) };
    let (mut places, mut fetched) = (HashMap::<String, usize>::new(), Fetched::new());
    for field in FIELDS.iter().filter_map(|name| fields.get(name)) {
        each(field, &mut |part| {
            url_of(part).into_iter().for_each(|url| *places.entry(url.to_owned()).or_default() += 1);
        });
    }
    let (begun, mut left) = (Instant::now(), most);
    for (url, places) in places {
        let result = match begun.elapsed() < TIME {
            true => fetcher.fetch(url.clone(), lease, left.min(MOST)).await?,
            false => Err("there are too many".to_owned()),
        };
        // Each place gets a copy.
        let bytes = result.as_ref().map_or(0, String::len);
        lease.take(bytes.saturating_mul((places - 1) * COPIES))?;
        let all = bytes.saturating_mul(places);
        left = left.checked_sub(all).ok_or_else(|| too_large(most))?;
        fetched.insert(url, result);
    }
    for name in FIELDS {
        if let Some(field) = fields.get_mut(name).filter(|_| !fetched.is_empty()) {
            put(field, &fetched);
        }
    }
    Ok(most - left)
}

fn each(value: &Value, call: &mut dyn FnMut(&Value)) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| each(item, call)),
        Value::Object(map) => {
            call(value);
            map.values().for_each(|inner| each(inner, call));
        }
        _ => {}
    }
}

fn put(value: &mut Value, fetched: &Fetched) {
    let found = url_of(value).and_then(|url| fetched.get(url));
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| put(item, fetched)),
        Value::Object(part) => match found {
            Some(Ok(url)) => {
                part.remove("source");
                part.insert("image_url".to_owned(), url.as_str().into());
            }
            Some(Err(why)) => {
                part.insert(UNFETCHED.to_owned(), format!("cannot be fetched: {why}").into());
            }
            None => part.values_mut().for_each(|inner| put(inner, fetched)),
        },
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::picture::of_part;
    use serde_json::json;

    #[test]
    fn what_was_fetched_takes_the_place_of_its_url() {
        let (good, bad) = ("https://a.example/x", "http://b.example/y");
        let parts = json!([
            {"type": "image_url", "image_url": {"url": good, "detail": "low"}},
            {"type": "image", "source": {"type": "url", "url": good}},
            {"type": "input_image", "image_url": bad},
            {"type": "text", "text": good},
            {"type": "image_url", "image_url": {"url": "data:;base64,YQ=="}},
        ]);
        let mut messages = json!([{"role": "user", "content": [{"type": "tool_result", "content": parts}]}]);
        let mut found = Vec::new();
        each(&messages, &mut |part| found.extend(url_of(part).map(str::to_owned)));
        assert_eq!(found, [good, good, bad]);
        let fetched = Fetched::from([
            (good.to_owned(), Ok("data:;base64,YWJj".to_owned())),
            (bad.to_owned(), Err("it is late".to_owned())),
        ]);
        put(&mut messages, &fetched);
        let parts = &messages[0]["content"][0]["content"];
        let picture = |at: usize| of_part(&parts[at], "x").picture;
        assert_eq!(picture(0), Ok(bn::Picture::new(*b"abc")));
        assert_eq!(picture(1), Ok(bn::Picture::new(*b"abc")));
        assert_eq!(picture(2), Err("cannot be fetched: it is late".to_owned()));
        assert_eq!(parts[3]["text"], good);
        assert_eq!(picture(4), Ok(bn::Picture::new(*b"a")));
    }
}
