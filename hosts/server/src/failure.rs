//! Failures of requests, and their form in each API.
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, Failure>;

/// A refusal or an error, with the status and the words that the client gets.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: StatusCode,
    /// A code for programs, like `context_length_exceeded`.
    pub code: &'static str,
    pub message: String,
    /// Seconds after which the client should try again; 0: it should not.
    pub retry_after: u32,
}

/// The option that bounds the texts of encoders, as the library's words have it.
const STEP: &str = "--max-batch-tokens";
/// The library's words before the size of a prompt that is too long. The last number after it is the maximum.
const PROMPT_HAS: &str = "the prompt has ";

/// The form of an API's error objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    OpenAi,
    Anthropic,
    Ollama,
}

impl Failure {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: 0 }
    }

    /// Status 400.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// Status 503, to be tried again after `seconds`.
    pub fn unavailable(code: &'static str, message: impl Into<String>, seconds: u32) -> Self {
        Self { retry_after: seconds, ..Self::new(StatusCode::SERVICE_UNAVAILABLE, code, message) }
    }

    /// The failure of a call of the library. A message about one of the engine's fields names the option that sets it.
    pub fn of(error: &bn::Error) -> Self {
        use bn::ErrorKind::{
            Busy, Cancelled, InvalidArgument, MemoryLimit, NotFound, OutOfMemory, QueueFull, Shutdown,
            TimedOut, TooLong, Unsupported,
        };
        let (status, code) = match error.kind() {
            InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            Unsupported => (StatusCode::BAD_REQUEST, "unsupported"),
            NotFound => (StatusCode::NOT_FOUND, "not_found"),
            Busy => (StatusCode::SERVICE_UNAVAILABLE, "busy"),
            TooLong => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            QueueFull | MemoryLimit => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
            OutOfMemory => (StatusCode::SERVICE_UNAVAILABLE, "out_of_memory"),
            Shutdown | Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            TimedOut => (StatusCode::GATEWAY_TIMEOUT, "timed_out"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        };
        let message = match error.kind() {
            // The engine's message is for administrators, who can raise its limits.
            QueueFull => "the server has as many requests as it takes: try again later".to_owned(),
            // The client knows only its own body, so positions are given in that.
            _ => crate::options::name_fields(&error.message().replacen("chat.json: ", "", 1)),
        };
        let again = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self { retry_after: u32::from(again), ..Self::new(status, code, message) }
    }

    /// If a prompt is too long, uses the words on which clients shorten it. `kind`: the name of the prompt in the
    /// request.
    pub fn of_prompt(mut self, kind: &str) -> Self {
        let (place, rest) = self.message.split_at(self.message.find(PROMPT_HAS).unwrap_or(0));
        let numbers = || rest.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
        let unit = rest.split([' ', ',', ';']).find(|word| ["tokens", "bytes"].contains(word));
        if self.code == "context_length_exceeded"
            && let (true, Some(unit)) = (rest.starts_with(PROMPT_HAS), unit)
            && let (Some(size), Some(most)) = (numbers().next(), numbers().next_back())
        {
            let raise =
                if rest.contains(STEP) { format!(", or raise the server's {STEP}") } else { String::new() };
            self.message = format!(
                "{place}This model's maximum context length is {most} tokens. However, your {kind} resulted in {size} {unit}. Please reduce the length of the {kind}{raise}."
            );
        }
        self
    }

    /// Names what the failure is about by its path in the client's body.
    pub fn at(mut self, path: &str) -> Self {
        self.message = format!("'{path}': {}", self.message);
        self
    }

    /// Names a picture by its path in the client's body, where the library's words have its number among all.
    pub fn with_places(mut self, places: &[String]) -> Self {
        const NUMBERED: &str = "picture ";
        let numbered = self.message.split_once(NUMBERED).and_then(|(before, rest)| {
            let (number, why) = rest.split_once(": ")?;
            Some((before, places.get(number.parse::<usize>().ok()?)?, why))
        });
        if let Some((before, at, why)) = numbered {
            self.message = format!("{before}'{at}': {why}");
        }
        self
    }

    /// The failure of a request in a list after `count` others, with its index corrected.
    pub fn behind(mut self, count: usize) -> Self {
        const FRONT: &str = "request ";
        let place = self.message.strip_prefix(FRONT).and_then(|rest| rest.split_once(':'));
        if let Some((place, rest)) = place.and_then(|(at, rest)| Some((at.parse::<usize>().ok()?, rest))) {
            self.message = format!("{FRONT}{}:{rest}", place + count);
        }
        self
    }

    /// The error object of an API.
    pub fn object(&self, shape: Shape) -> Value {
        match shape {
            Shape::OpenAi => json!({"error": {
                "message": self.message, "type": self.openai_type(), "param": null, "code": self.code,
            }}),
            Shape::Anthropic => {
                let mut error = json!({"type": self.anthropic_type(), "message": self.message});
                if self.code.starts_with("thread_") {
                    error["details"] = json!({"error_code": self.code});
                }
                json!({"type": "error", "error": error})
            }
            Shape::Ollama => json!({"error": self.message}),
        }
    }

    pub fn response(&self, shape: Shape) -> Response<Body> {
        let mut response = Response::new(Body::from(self.object(shape).to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if self.retry_after > 0 {
            headers.insert(header::RETRY_AFTER, self.retry_after.into());
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            429 => "rate_limit_error",
            ..500 => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.status.as_u16() {
            401 => "authentication_error",
            403 => "permission_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            504 => "timeout_error",
            ..500 => "invalid_request_error",
            _ => "api_error",
        }
    }
}

impl From<bn::Error> for Failure {
    fn from(error: bn::Error) -> Self {
        Self::of(&error)
    }
}

/// The failure for a body of more than `most` bytes.
pub fn too_large(most: usize) -> Failure {
    let message = format!("the body has more than {most} bytes");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_named_as_the_body_does() {
        let places = ["messages[0].content[1]", "messages[2].content[0]"].map(str::to_owned);
        for (message, named) in [
            ("picture 1: it is damaged", "'messages[2].content[0]': it is damaged"),
            (
                "request 3: picture 0: the picture 1: x",
                "request 3: 'messages[0].content[1]': the picture 1: x",
            ),
            ("picture 2: it is damaged", "picture 2: it is damaged"),
            ("a picture of 0x1 pixels: it is empty", "a picture of 0x1 pixels: it is empty"),
        ] {
            assert_eq!(Failure::invalid(message).with_places(&places).message, named);
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_told_in_the_words_that_clients_know() {
        let said = |message: &str, code: &'static str| {
            Failure::new(StatusCode::BAD_REQUEST, code, message).of_prompt("messages").message
        };
        let long =
            "request 2: the prompt has 90 bytes; the context of 64 tokens has to hold it and a new token";
        let words = "request 2: This model's maximum context length is 64 tokens. However, your messages resulted in 90 bytes. Please reduce the length of the messages.";
        assert_eq!(said(long, "context_length_exceeded"), words);
        let step = "the prompt has 90 tokens, which an encoder runs in one step; --max-batch-tokens = 64 has to hold it";
        let words = "This model's maximum context length is 64 tokens. However, your messages resulted in 90 tokens. Please reduce the length of the messages, or raise the server's --max-batch-tokens.";
        assert_eq!(said(step, "context_length_exceeded"), words);
        for other in ["8 messages of 90 bytes; at most 64 are taken", "the prompt has a fault"] {
            assert_eq!(said(other, "context_length_exceeded"), other);
        }
        assert_eq!(said(long, "invalid_request_error"), long);
    }
}
