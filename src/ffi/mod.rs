//! The only `extern "C"`.
