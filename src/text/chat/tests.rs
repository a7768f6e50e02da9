use super::*;

fn render(source: &str, messages: &[(&str, &str)]) -> Result<String> {
    let messages: Vec<_> = messages.iter().map(|&(role, content)| Message { role, content }).collect();
    let tokens =
        vec![("bos_token".to_owned(), "<s>".to_owned()), ("eos_token".to_owned(), "</s>".to_owned())];
    ChatTemplate::new(source, tokens)?.render(&messages, true)
}

/// Of a template about nothing but itself.
fn value(source: &str) -> String {
    render(source, &[("user", "hi")]).unwrap_or_else(|e| format!("{:?}: {e}", e.status))
}

#[test]
fn a_conversation() {
    let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m['content'] | trim }}\n{% endfor %}\
                  {% if add_generation_prompt %}[assistant]{% endif %}";
    let text = render(source, &[("system", " be brief "), ("user", "hé")]).unwrap();
    assert_eq!(text, "<s>[system] be brief\n[user] hé\n[assistant]");
}
