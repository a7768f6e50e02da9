//! Prompts that ask whether a document answers a query, as chat templates of the roles `system`, `query` and
//! `document`.

use super::ChatTemplate;
use crate::base::{Error, Result};
use crate::formats::Gguf;

/// The prompt of Qwen3-Reranker, in the form in which GGUF files store it.
pub const QWEN3_RERANKER: &str = "<|im_start|>system\nJudge whether the Document meets the requirements based on the \
    Query and the Instruct provided. Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n\
    <Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: {query}\n\
    <Document>: {document}<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/// The instruction of that prompt, which a message of the role `system` replaces.
const INSTRUCTION: &str = "Given a web search query, retrieve relevant passages that answer the query";

const KEY: &str = "tokenizer.chat_template.rerank";

/// The roles of a pair's messages, in their order; the first may be missing.
pub const ROLES: [&str; 3] = ["system", "query", "document"];

/// Whether a template is one for pairs, by the roles that it names.
pub fn takes_pairs(source: &str) -> bool {
    let names = |role: &str| source.contains(&format!("\"{role}\"")) || source.contains(&format!("'{role}'"));
    names(ROLES[1]) && names(ROLES[2])
}

/// The template of a GGUF file; None if there is none.
pub fn from_gguf(gguf: &Gguf) -> Result<Option<ChatTemplate>> {
    let Some(text) = gguf.find::<&str>(KEY)? else { return Ok(None) };
    let template = of_text(text);
    template.map(Some).map_err(|e| Error::new(e.status, format!("{}: {KEY}: {}", gguf.what(), e.message)))
}

/// The template of a prompt with `{query}` and `{document}`.
pub fn of_text(text: &str) -> Result<ChatTemplate> {
    let places = [("{query}", "messages[-2].content"), ("{document}", "messages[-1].content")];
    if let Some((place, _)) = places.iter().find(|(place, _)| !text.contains(place)) {
        return Err(Error::unsupported(format!("it has no {place}")));
    }
    let instruction = format!("messages[0].content if messages | length > 2 else {}", quoted(INSTRUCTION));
    let places = places.into_iter().chain([(INSTRUCTION, &*instruction)]);
    let mut source = String::new();
    if !text.contains(INSTRUCTION) {
        let why = quoted("the model's prompt for pairs has no instruction that a system message replaces");
        source = format!("{{% if messages | length > 2 %}}{{{{ raise_exception({why}) }}}}{{% endif %}}");
    }
    let mut rest = text;
    loop {
        let next = places.clone().filter_map(|(place, value)| Some((rest.find(place)?, place, value))).min();
        let Some((at, place, value)) = next else { break };
        source += &format!("{{{{ {} }}}}{{{{ {value} }}}}", quoted(&rest[..at]));
        rest = &rest[at + place.len()..];
    }
    source += &format!("{{{{ {} }}}}", quoted(rest));
    ChatTemplate::new(&source, Vec::new())
}

/// A string of the template's language.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Message;

    fn messages<'a>(contents: &[&'a str]) -> Vec<Message<'a>> {
        let roles = &ROLES[3 - contents.len()..];
        roles.iter().zip(contents).map(|(role, content)| Message { role, content }).collect()
    }

    #[test]
    fn a_prompts_own_words_stay_as_they_are() {
        let template = of_text(QWEN3_RERANKER).unwrap();
        let made = template.render(&messages(&["what {document}?", "<|im_end|> \"a\"\n"]), true).unwrap();
        let text = QWEN3_RERANKER.replace("{query}", "what {document}?");
        let at = text.rfind("{document}").unwrap();
        let text = format!("{}<|im_end|> \"a\"\n{}", &text[..at], &text[at + "{document}".len()..]);
        assert_eq!(made.text, text);
        let marked: Vec<&str> = made.untrusted.iter().map(|range| &text[range.clone()]).collect();
        assert_eq!(marked, ["what {document}?", "<|im_end|> \"a\"\n"]);
        let made = template.render(&messages(&["Find proofs", "q", "d"]), true).unwrap().text;
        assert!(made.contains("<Instruct>: Find proofs\n<Query>: q\n<Document>: d<|im_end|>"), "{made}");
    }

    #[test]
    fn other_prompts_have_their_places_and_no_instruction() {
        let template = of_text("{{% {document}\\{query}{document}").unwrap();
        assert_eq!(template.render(&messages(&["q", "d"]), true).unwrap().text, "{{% d\\qd");
        let error = template.render(&messages(&["i", "q", "d"]), true).unwrap_err();
        assert!(error.message.contains("no instruction"), "{error}");
        assert!(of_text("{query} alone").err().unwrap().message.contains("{document}"));
        assert!(
            takes_pairs("selectattr(\"role\", \"eq\", \"query\") 'document'")
                && !takes_pairs("a query, a document")
        );
    }
}
