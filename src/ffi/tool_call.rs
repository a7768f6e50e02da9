//! Calls of tools in events.

use super::string::bn_string;
use crate::engine::api::{CallView, TextView};
use std::mem::offset_of;

/// A call of a tool in an answer, or the next part of one. The first part comes when the name is
/// known and the arguments begin.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct bn_tool_call {
    /// Its number in the answer, from 0.
    pub index: u32,
    /// Bytes of the event's `text` that the model wrote before it.
    pub text_before: u32,
    /// Nine letters and digits, the same for the same prompt, seed and index. Empty except in the
    /// first part.
    pub id: bn_string,
    /// The name as the model wrote it, which may be none of `tools`. Empty except in the first
    /// part.
    pub name: bn_string,
    /// The next part of the arguments' JSON.
    pub arguments: bn_string,
}

// Calls are handed out without a copy, so the layouts must match.
const _: () = {
    assert!(size_of::<bn_tool_call>() == size_of::<CallView>());
    assert!(offset_of!(bn_tool_call, index) == offset_of!(CallView, index));
    assert!(offset_of!(bn_tool_call, text_before) == offset_of!(CallView, text_before));
    assert!(offset_of!(bn_tool_call, id) == offset_of!(CallView, id));
    assert!(offset_of!(bn_tool_call, name) == offset_of!(CallView, name));
    assert!(offset_of!(bn_tool_call, arguments) == offset_of!(CallView, arguments));
    assert!(size_of::<bn_string>() == size_of::<TextView>());
    assert!(offset_of!(bn_string, data) == offset_of!(TextView, data));
    assert!(offset_of!(bn_string, length) == offset_of!(TextView, length));
};
