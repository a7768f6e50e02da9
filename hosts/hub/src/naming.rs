//! Rewrites the library's messages, which name fields of its structs, to name a program's options.

/// Whether a character is part of a field's or a file's name.
fn in_name(c: char) -> bool {
    c.is_alphanumeric() || "_/\\.-".contains(c)
}

/// Whether the name continues in `rest`. A full stop may also end a sentence.
fn goes_on(rest: &str) -> bool {
    rest.strip_prefix('.').unwrap_or(rest).starts_with(in_name)
}

/// The option for the field that `rest` begins with, and the text after the field.
fn option_at<'a>(rest: &'a str, table: &[(&str, &'a str)]) -> Option<(&'a str, &'a str)> {
    let fields = table.iter().filter_map(|(field, option)| Some((*option, rest.strip_prefix(field)?)));
    fields.into_iter().find(|(_, behind)| !goes_on(behind))
}

/// The message with options in place of fields; the table has pairs of them. A field's name that is part of a longer
/// one, or of a path, stays.
pub fn fields_as_options(message: &str, table: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    let mut inside = false;
    while let Some(first) = rest.chars().next() {
        let found = if inside { None } else { option_at(rest, table) };
        let (text, behind) = found.unwrap_or_else(|| rest.split_at(first.len_utf8()));
        out.push_str(text);
        // A field ends as it begins: with a character of names.
        inside = found.is_some() || in_name(first);
        rest = behind;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_become_options_but_not_within_names_and_paths() {
        let table = [("path", "MODEL"), ("kv_type", "--kv-type"), ("kv_type_v", "--kv-type-v")];
        for (message, expected) in [
            ("path: no such file", "MODEL: no such file"),
            ("see kv_type.", "see --kv-type."),
            ("kv_type_v and kv_type", "--kv-type-v and --kv-type"),
            ("model.path, xpath, /path/x, path.gguf, paths", "model.path, xpath, /path/x, path.gguf, paths"),
            ("größepath „path“", "größepath „MODEL“"),
            ("", ""),
        ] {
            assert_eq!(fields_as_options(message, &table), expected);
        }
    }
}
