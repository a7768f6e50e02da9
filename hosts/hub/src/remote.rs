//! Answers of the hub: lists of files as JSON, and refusals.
use std::time::{Duration, Instant};

use serde::Deserialize;

use crate::Hub;
use crate::error::{Error, Result};
use crate::http::Step;
use crate::list::{List, is_commit};

/// Maximum size of a list.
const LONGEST_LIST: usize = 64 << 20;
/// Maximum time for a list.
const SLOWEST_LIST: Duration = Duration::from_secs(600);

/// The wait after which the user is told.
const SLOW: Duration = Duration::from_secs(1);

/// The result of asking for a list.
pub enum Listed {
    Here(List),
    /// The hub was not reached, for this reason.
    Away(String),
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
}

#[derive(Deserialize)]
struct Sibling {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    #[serde(rename = "blobId")]
    blob: Option<String>,
    lfs: Option<Large>,
}

#[derive(Deserialize)]
struct Large {
    sha256: String,
    size: u64,
}

/// Asks the hub for a model's files.
pub fn list(hub: &mut Hub) -> Result<Listed> {
    let (endpoint, repo) = (hub.endpoint().into_owned(), hub.name.repo.clone());
    let text =
        match read(hub, &format!("{}/api/models/{repo}/revision/main?blobs=true", hub.settings.endpoint))? {
            Ok((200, text)) => text,
            Ok((status, _)) if status >= 500 || status == 429 => {
                return Ok(Listed::Away(format!("{endpoint} answers with HTTP status {status}")));
            }
            Ok((status, _)) => return Err(refusal(hub, status, &repo)),
            Err(why) => return Ok(Listed::Away(why)),
        };
    let no_list = || Error::failed(format!("{repo}: {endpoint} answers with no list of files"));
    parse(&text).map(Listed::Here).ok_or_else(no_list)
}

fn parse(text: &[u8]) -> Option<List> {
    let answer: Answer = serde_json::from_slice(text).ok()?;
    let mut list = List::new(Some(answer.sha.as_str()).filter(|sha| is_commit(sha))?);
    for file in answer.siblings {
        match (file.lfs, file.size) {
            (Some(large), _) => list.add(file.name, large.sha256, large.size),
            (None, Some(size)) => list.add(file.name, file.blob.unwrap_or_default(), size),
            (None, None) => {}
        }
    }
    Some(list)
}

/// Reads an answer: its status, and its text if that is 200. The error says why there is none.
fn read(hub: &mut Hub, url: &str) -> Result<std::result::Result<(u16, Vec<u8>), String>> {
    let began = Instant::now();
    let endpoint = hub.endpoint().into_owned();
    let mut told = false;
    let request = hub.client.get(url, 0);
    let (mut status, mut text) = (0, Vec::new());
    loop {
        let step = request.step();
        hub.check("stopped")?;
        match step {
            Step::Status(200) => status = 200,
            Step::Status(other) => return Ok(Ok((other, text))),
            Step::Bytes(more) if text.len() + more.len() <= LONGEST_LIST => text.extend(more),
            Step::Bytes(_) => return Ok(Err(format!("{endpoint} answers with more than 64 MiB"))),
            Step::Nothing if !told && began.elapsed() > SLOW => {
                hub.progress.wait(&format!("asking {endpoint}"));
                told = true;
            }
            Step::Nothing => {}
            Step::End => return Ok(Ok((status, text))),
            Step::Failed(why) => return Ok(Err(format!("{endpoint} is not reached ({why})"))),
        }
        if began.elapsed() > SLOWEST_LIST {
            return Ok(Err(format!("{endpoint} answers too slowly")));
        }
    }
}

/// The reason why the hub refuses.
pub fn refusal(hub: &Hub, status: u16, file: &str) -> Error {
    let endpoint = hub.endpoint();
    let repo = &hub.name.repo;
    Error::failed(match (status, &hub.settings.token) {
        (404, _) => format!("{file}: there is none on {endpoint}"),
        (401 | 403, Some(_)) => format!(
            "{file}: {endpoint} has none, or does not give it to the owner of this token (HF_TOKEN, or that of \
             huggingface_hub's login). If it is gated, accept its conditions at {endpoint}/{repo}."
        ),
        (401 | 403, None) => format!(
            "{file}: {endpoint} has none, or it is private or gated. For these, accept the conditions at \
             {endpoint}/{repo}, make a token at {endpoint}/settings/tokens, and set HF_TOKEN to it."
        ),
        _ => format!("{file}: {endpoint} answers with HTTP status {status}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

    #[test]
    fn lists_have_checksums_and_sizes_of_large_and_small_files() {
        let (large, small) = ("a".repeat(64), "b".repeat(40));
        let text = format!(
            r#"{{"id": "x", "sha": "{COMMIT}", "gated": [[{{}}]], "siblings": [
                {{"rfilename": "l", "size": 7, "blobId": "{small}", "lfs": {{"sha256": "{large}", "size": 8, "p": 1}}}},
                {{"rfilename": "s", "size": 18446744073709551615, "blobId": "{small}", "lfs": null}},
                {{"rfilename": "no size"}}, {{"rfilename": "no sum", "size": 1}}, {{"rfilename": "../x", "size": 1}}]}}"#
        );
        let list = parse(text.as_bytes()).unwrap();
        let files: Vec<_> = list.files().iter().map(|f| (f.name.as_str(), f.etag.as_str(), f.size)).collect();
        assert_eq!(files, [("l", large.as_str(), 8), ("s", small.as_str(), u64::MAX), ("no sum", "", 1)]);
        assert_eq!(list.commit, COMMIT);
    }

    #[test]
    fn other_answers_are_no_lists() {
        let deep = "[".repeat(1 << 20);
        let short = format!(r#"{{"sha": "{}", "siblings": []}}"#, &COMMIT[1..]);
        let negative = format!(r#"{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "a", "size": -1}}]}}"#);
        for text in ["", "[]", "{}", &deep, &short, &negative, r#"{"sha": 1}"#] {
            assert!(parse(text.as_bytes()).is_none());
        }
    }
}
