//! The tool calls of an event, laid out for the C API.

use std::fmt;

/// Text in an event, laid out like `bn_string`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct TextView {
    pub data: *const u8,
    pub length: usize,
}

/// A call, or a continuation of one, laid out like `bn_tool_call`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CallView {
    pub index: u32,
    pub text_before: u32,
    pub id: TextView,
    pub name: TextView,
    pub arguments: TextView,
}

// SAFETY: the pointers lead into strings that `ToolCalls` owns as well; only their addresses are kept here.
unsafe impl Send for CallView {}
// SAFETY: as above.
unsafe impl Sync for CallView {}

/// The part of a call that is in one event. Id and name are empty if an earlier event had them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallText {
    pub index: u32,
    /// Bytes of the event's text that come before it.
    pub text_before: u32,
    pub id: String,
    pub name: String,
    pub arguments: String,
}

/// Calls in the order of their indices.
#[derive(Default)]
pub struct ToolCalls {
    texts: Vec<CallText>,
    /// One for each of `texts`, whose heap bytes do not move with it.
    views: Vec<CallView>,
}

impl TextView {
    fn of(text: &str) -> Self {
        let data = if text.is_empty() { c"".as_ptr().cast() } else { text.as_ptr() };
        Self { data, length: text.len() }
    }
}

impl CallText {
    fn view(&self) -> CallView {
        let [id, name, arguments] = [&self.id, &self.name, &self.arguments].map(|text| TextView::of(text));
        CallView { index: self.index, text_before: self.text_before, id, name, arguments }
    }
}

impl ToolCalls {
    pub fn texts(&self) -> &[CallText] {
        &self.texts
    }

    pub fn views(&self) -> &[CallView] {
        &self.views
    }

    fn push(&mut self, call: CallText) -> bool {
        let room = self.texts.try_reserve(1).is_ok() && self.views.try_reserve(1).is_ok();
        if room {
            self.views.push(call.view());
            self.texts.push(call);
        }
        room
    }

    /// Appends `part`, whose arguments are those of the last call if it is a part of that one. Returns false if memory
    /// is refused.
    pub fn add(&mut self, part: CallText) -> bool {
        let (Some(last), Some(view)) = (self.texts.last_mut(), self.views.last_mut()) else {
            return self.push(part);
        };
        if last.index != part.index {
            return self.push(part);
        }
        let room = last.arguments.try_reserve(part.arguments.len()).is_ok();
        if room {
            last.arguments.push_str(&part.arguments);
            *view = last.view();
        }
        room
    }

    /// Appends the calls of a later event, whose text comes after `text_before` bytes of this one's.
    pub fn merge(&mut self, next: &mut Self, text_before: usize) {
        next.views.clear();
        for call in next.texts.drain(..) {
            self.add(CallText { text_before: call.text_before.saturating_add(text_before as u32), ..call });
        }
    }
}

impl Clone for ToolCalls {
    fn clone(&self) -> Self {
        let texts = self.texts.clone();
        let views = texts.iter().map(CallText::view).collect();
        Self { texts, views }
    }
}

impl fmt::Debug for ToolCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.texts.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(calls: &ToolCalls) -> Vec<(u32, String, String, String)> {
        let text = |view: TextView| {
            // SAFETY: the view is of a string that `calls` owns.
            let bytes = unsafe { std::slice::from_raw_parts(view.data, view.length) };
            String::from_utf8(bytes.to_vec()).unwrap()
        };
        calls.views().iter().map(|v| (v.index, text(v.id), text(v.name), text(v.arguments))).collect()
    }

    #[test]
    fn parts_become_one_call_again() {
        let part = |index: u32, id: &str, arguments: &str, text_before: u32| CallText {
            index,
            text_before,
            id: id.into(),
            name: if id.is_empty() { "" } else { "f" }.into(),
            arguments: arguments.into(),
        };
        let mut first = ToolCalls::default();
        assert!(first.add(part(0, "a", "{", 3)) && first.add(part(0, "", "\"x\"", 3)));
        let mut second = ToolCalls::default();
        assert!(second.add(part(0, "", ":1}", 0)) && second.add(part(1, "b", "{}", 2)));
        let moved = Box::new(second.clone());
        first.merge(&mut second, 5);
        let all = [(0, "a", "f", "{\"x\":1}"), (1, "b", "f", "{}")]
            .map(|(index, id, name, json)| (index, id.into(), name.into(), json.into()));
        assert_eq!(shown(&first), all);
        assert_eq!(shown(&first.clone()), all);
        assert_eq!(first.views().iter().map(|call| call.text_before).collect::<Vec<_>>(), [3, 7]);
        assert_eq!((shown(&moved).len(), second.texts().len(), second.views().len()), (2, 0, 0));
    }
}
