//! Why a request gets no answer, and how each API says so.
use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode, header};
use serde_json::{Value, json};

pub type Result<T> = std::result::Result<T, Failure>;

/// A refusal or an error, with the status and the words that the client gets.
#[derive(Clone, Debug)]
pub struct Failure {
    pub status: StatusCode,
    /// A word for programs, like `context_length_exceeded`.
    pub code: &'static str,
    pub message: String,
    /// Seconds after which the client should try again; 0: it need not.
    pub retry_after: u32,
}

/// How an API's error objects look.
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
            Cancelled, InvalidArgument, MemoryLimit, OutOfMemory, QueueFull, Shutdown, TimedOut, TooLong,
            Unsupported,
        };
        let (status, code) = match error.kind() {
            InvalidArgument => (StatusCode::BAD_REQUEST, "invalid_request_error"),
            Unsupported => (StatusCode::BAD_REQUEST, "unsupported"),
            TooLong => (StatusCode::BAD_REQUEST, "context_length_exceeded"),
            QueueFull | MemoryLimit => (StatusCode::TOO_MANY_REQUESTS, "rate_limit_exceeded"),
            OutOfMemory => (StatusCode::SERVICE_UNAVAILABLE, "out_of_memory"),
            Shutdown | Cancelled => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
            TimedOut => (StatusCode::GATEWAY_TIMEOUT, "timed_out"),
            _ => (StatusCode::INTERNAL_SERVER_ERROR, "internal_error"),
        };
        let message = match error.kind() {
            // The engine's own message is for administrators, who can raise its limits.
            QueueFull => "the server has as many requests as it takes: try again later".to_owned(),
            // The client knows its own body, and no other JSON.
            _ => crate::options::name_fields(error.message()).replacen("chat.json: ", "", 1),
        };
        let again = matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE);
        Self { retry_after: u32::from(again), ..Self::new(status, code, message) }
    }

    /// The failure of a request of a list behind `count` others, where it names its place.
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
