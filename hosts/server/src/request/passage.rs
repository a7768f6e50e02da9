//! Texts with pictures in them.
use crate::failure::Result;
use serde::Serialize;
use serde::ser::Serializer;
use serde_json::json;
use std::mem;
use std::ops::Deref;

/// A text, and pictures at places in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Passage {
    text: String,
    /// With the bytes of text before each, in order.
    shown: Vec<(usize, Shown)>,
}

/// A picture that a client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its path in the client's body.
    pub at: String,
    /// Err: why there is none, as the end of a sentence that begins with the path.
    pub picture: std::result::Result<bn::Picture, String>,
}

impl From<String> for Passage {
    fn from(text: String) -> Self {
        Self { text, shown: Vec::new() }
    }
}

impl From<&str> for Passage {
    fn from(text: &str) -> Self {
        text.to_owned().into()
    }
}

impl Deref for Passage {
    type Target = str;

    fn deref(&self) -> &str {
        &self.text
    }
}

impl Passage {
    /// Whether there is neither text nor a picture.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty() && self.shown.is_empty()
    }

    pub fn pictures(&self) -> impl Iterator<Item = &bn::Picture> {
        self.placed().map(|(_, picture)| picture)
    }

    /// The pictures, each with its path in the client's body.
    pub fn placed(&self) -> impl Iterator<Item = (&str, &bn::Picture)> {
        self.shown.iter().filter_map(|(_, shown)| Some((&*shown.at, shown.picture.as_ref().ok()?)))
    }

    pub fn push_str(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Inserts a character after `at` bytes, in front of a picture there.
    pub fn insert(&mut self, at: usize, sign: char) {
        self.text.insert(at, sign);
        for (place, _) in self.shown.iter_mut().filter(|(place, _)| *place >= at) {
            *place += sign.len_utf8();
        }
    }

    pub fn show(&mut self, shown: Shown) {
        self.shown.push((self.text.len(), shown));
    }

    pub fn extend(&mut self, other: &Self) {
        let before = self.text.len();
        self.text.push_str(&other.text);
        self.shown.extend(other.shown.iter().map(|(at, shown)| (before + at, shown.clone())));
    }

    /// Appends a passage after a blank line.
    pub fn append(&mut self, other: &Self) {
        if !self.is_empty() && !other.is_empty() {
            self.text.push_str("\n\n");
        }
        self.extend(other);
    }

    /// Appends lines of their own.
    pub fn paragraph(&mut self, lines: &Self) {
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
        self.extend(lines);
        self.text.push('\n');
    }

    /// Moves the pictures to the end of `to`, and puts words in their places.
    pub fn move_pictures(&mut self, to: &mut Self, words: &str) {
        let moved = self.replace(|shown| {
            to.show(shown.clone());
            Ok(Some(words.to_owned()))
        });
        debug_assert!(moved.is_ok());
    }

    /// Puts words on a line of their own in the place of each picture for which `words` has some.
    pub fn replace(&mut self, mut words: impl FnMut(&Shown) -> Result<Option<String>>) -> Result<()> {
        let Self { text, shown } = mem::take(self);
        let mut from = 0;
        for (at, shown) in shown {
            self.text.push_str(&text[from..at]);
            from = at;
            match words(&shown)? {
                Some(words) => self.paragraph(&words.into()),
                None => self.show(shown),
            }
        }
        self.text.push_str(&text[from..]);
        Ok(())
    }
}

/// A text, or with pictures a list of parts, in which each has the place of the request's next one.
impl Serialize for Passage {
    fn serialize<S: Serializer>(&self, to: S) -> std::result::Result<S::Ok, S::Error> {
        if self.shown.is_empty() {
            return to.serialize_str(&self.text);
        }
        let (mut parts, mut from) = (Vec::new(), 0);
        let mut add = |parts: &mut Vec<_>, to: usize| {
            if to > from {
                parts.push(json!({"type": "text", "text": &self.text[from..to]}));
            }
            from = to;
        };
        for (at, _) in &self.shown {
            add(&mut parts, *at);
            parts.push(json!({"type": "image"}));
        }
        add(&mut parts, self.text.len());
        to.collect_seq(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(byte: u8) -> Shown {
        Shown { at: format!("p{byte}"), picture: Ok(bn::Picture::new([byte])) }
    }

    fn passage() -> Passage {
        let mut passage = Passage::from("é");
        passage.show(shown(1));
        passage.show(shown(2));
        passage.push_str("b");
        passage
    }

    #[test]
    fn parts_are_in_order() {
        let (text, image) = (|text: &str| json!({"type": "text", "text": text}), json!({"type": "image"}));
        let mut all = passage();
        assert_eq!(json!(all), json!([text("é"), image, image, text("b")]));
        all.append(&passage());
        assert_eq!(json!(all), json!([text("é"), image, image, text("b\n\né"), image, image, text("b")]));
        let bytes: Vec<_> = all.pictures().cloned().collect();
        assert_eq!(bytes, [1, 2, 1, 2].map(|byte| bn::Picture::new([byte])));
        all.insert(2, '\n');
        assert_eq!(json!(all)[0], text("é\n"));
        let mut alone = Passage::default();
        alone.show(shown(1));
        assert!(!alone.is_empty());
        assert_eq!(json!(alone), json!([image]));
        assert_eq!(json!(Passage::from("a")), json!("a"));
    }

    #[test]
    fn words_stand_on_their_own_lines() {
        let mut one = passage();
        one.replace(|shown| Ok((shown.at == "p2").then(|| "[x]".to_owned()))).unwrap();
        assert_eq!((&*one, one.pictures().count()), ("é\n[x]\nb", 1));
        assert_eq!(json!(one)[2], json!({"type": "text", "text": "\n[x]\nb"}));
        let mut all = passage();
        all.replace(|_| Ok(Some("[x]".to_owned()))).unwrap();
        assert_eq!(json!(all), json!("é\n[x]\n[x]\nb"));
    }
}
