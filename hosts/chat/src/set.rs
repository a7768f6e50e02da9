//! /set and /system: the sampling of the next answers, and the system prompt.
use crate::chat::Chat;
use crate::failure::{Result, failed};
use crate::say::note;
use std::fmt::Write;

pub fn set(chat: &mut Chat, rest: &str) -> Result<()> {
    if rest.is_empty() {
        return show(chat);
    }
    let (name, value) = cut(rest);
    if name == "system" {
        return system(chat, value.unwrap_or_default());
    }
    chat.sources.change(name, value)?;
    if name == "seed" {
        chat.turns = 0; // with the same seed, the same answers from here on
    }
    if chat.interactive {
        let name = name.replace('-', "_");
        note(format_args!("({name} is {})", value.unwrap_or("the default again")));
    }
    Ok(())
}

/// Splits off a name. The rest comes without quotes around it.
fn cut(rest: &str) -> (&str, Option<&str>) {
    let blank = [' ', '\t'];
    let (name, value) = rest.split_once(blank).unwrap_or((rest, ""));
    let value = value.trim_matches(blank);
    let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
    (name, Some(value).filter(|value| !value.is_empty()))
}

fn show(chat: &Chat) -> Result<()> {
    let mut text = String::new();
    for (name, value, from) in chat.sources.list() {
        _ = writeln!(text, "{name:<19} {value}{from}");
    }
    _ = writeln!(text, "{:<19} {}", "system", chat.conversation.system().unwrap_or("-"));
    Ok(chat.screen.show(&text)?)
}

/// Sets another system prompt, or none.
pub fn system(chat: &mut Chat, text: &str) -> Result<()> {
    if !chat.has_template() {
        return failed("this model has no chat template, so no system prompt");
    }
    chat.conversation.set_system(text);
    if chat.interactive {
        note(if text.is_empty() { "(there is no system prompt now)" } else { "(the system prompt is set)" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::cut;

    #[test]
    fn a_value_may_stand_between_quotes() {
        assert_eq!(cut("top_k"), ("top_k", None));
        assert_eq!(cut("top_k  5 "), ("top_k", Some("5")));
        assert_eq!(cut("system \"Be brief.\""), ("system", Some("Be brief.")));
        assert_eq!(cut("system \"\""), ("system", None));
        assert_eq!(cut("system \""), ("system", Some("\"")));
    }
}
