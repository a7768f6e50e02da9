//! Parses calls in frames of markers: a name and an object of arguments, which may be in a fence (DeepSeek, Hunyuan).

use super::{At, Call, MAX_WORD, Turn, is_blank};
use crate::text::chat::is_name;
use crate::text::reply::Emitter;
use crate::text::reply::format::Frame;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Framed {
    #[default]
    Fresh,
    /// After a frame.
    Before,
    /// Before the arguments.
    Head,
    Arguments,
    /// After the arguments.
    Behind,
}

/// The name in the text before the arguments.
fn name_in<'a>(head: &'a str, frame: &Frame) -> Option<&'a str> {
    let head = head.trim_matches(is_blank);
    let head = head.strip_suffix("json").and_then(|rest| rest.strip_suffix("```")).unwrap_or(head);
    let head = head.trim_matches(is_blank);
    if frame.separator.is_empty() {
        return Some(head).filter(|name| is_name(name));
    }
    let head = head.strip_suffix(frame.separator).unwrap_or(head);
    let (kind, name) = head.rsplit_once(frame.separator).unwrap_or(("", head));
    (is_name(name) && (kind.is_empty() || is_name(kind))).then_some(name)
}

impl Call {
    pub(super) fn in_frame(&mut self, c: char, to: &mut Emitter) -> Turn {
        self.raw.push(c);
        let Some(frame) = to.parts.format.and_then(|format| format.frame) else { return Turn::Fail };
        if self.framed == Framed::Fresh && self.block.is_some_and(|block| block.open == frame.open) {
            self.framed = Framed::Head;
        }
        match self.framed {
            Framed::Fresh | Framed::Before => self.before_frame(c, &frame),
            Framed::Head => self.frame_head(c, &frame, to),
            Framed::Arguments => self.frame_arguments(c, to),
            Framed::Behind => self.behind_arguments(c, &frame),
        }
    }

    fn before_frame(&mut self, c: char, frame: &Frame) -> Turn {
        if self.word.is_empty() && is_blank(c) {
            return Turn::More;
        }
        self.word.push(c);
        // A block without calls is text.
        let close = self.block.filter(|_| self.framed == Framed::Before).map_or("", |block| block.close);
        if self.word == close {
            return Turn::End;
        }
        if self.word == frame.open {
            self.word.clear();
            self.framed = Framed::Head;
            return Turn::More;
        }
        let may = [frame.open, close].iter().any(|marker| marker.starts_with(&*self.word));
        if may { Turn::More } else { Turn::Fail }
    }

    fn frame_head(&mut self, c: char, frame: &Frame, to: &mut Emitter) -> Turn {
        if c != '{' {
            self.word.push(c);
            let most = 2 * MAX_WORD + 2 * frame.separator.len();
            return if self.word.len() <= most { Turn::More } else { Turn::Fail };
        }
        let Some(name) = name_in(&self.word, frame) else { return Turn::Fail };
        self.name = name.to_owned();
        self.named = true;
        self.word.clear();
        self.framed = Framed::Arguments;
        self.begin_arguments(to)
    }

    fn frame_arguments(&mut self, c: char, to: &mut Emitter) -> Turn {
        let turn = self.argument(c, to);
        if matches!(self.at, At::Behind) {
            self.framed = Framed::Behind;
        }
        turn
    }

    /// A fence may end before the frame does.
    fn behind_arguments(&mut self, c: char, frame: &Frame) -> Turn {
        if self.word.is_empty() && (is_blank(c) || c == '`') {
            return Turn::More;
        }
        self.word.push(c);
        let close = self.block.map_or("", |block| block.close);
        if self.word == close {
            return Turn::End;
        }
        if self.word == frame.close {
            self.word.clear();
            self.raw.clear();
            self.framed = Framed::Before;
            return Turn::More;
        }
        let may = [frame.close, close].iter().any(|marker| marker.starts_with(&*self.word));
        if may { Turn::More } else { Turn::Fail }
    }
}
